//! Variables of the environment that stand for no option.

use super::{Apply, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        names: &["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"],
        apply: Apply::NotNeeded("a worker downloads nothing from a hub; `hf download` reads it"),
    },
    Rule {
        names: &[
            "JAVA_HOME",
            "JAVA_OPTS",
            "JDK_JAVA_OPTIONS",
            "DEFAULT_JVM_OPTS",
            "MODEL_SERVER_HOME",
            "SERVING_OPTS",
            "DJL_CACHE_DIR",
            "DJL_DEFAULT_ENGINE",
            "DJL_OFFLINE",
            "DJL_VENV_DIR",
            "DJL_CLUSTER_SIZE",
            "ENGINE_CACHE_DIR",
            "TEST_SERVING_VERSION",
            "PYTORCH_LIBRARY_PATH",
            "PYTORCH_VERSION",
            "PYTORCH_EXTRA_LIBRARY_PATH",
            "PYTORCH_PRECXX11",
            "PYTORCH_FLAVOR",
            "PYTORCH_JIT_LOG_LEVEL",
            "TENSORFLOW_LIBRARY_PATH",
            "TENSORRT_EXTRA_LIBRARY_PATH",
            "TOKENIZERS_CACHE",
        ],
        apply: Apply::NotNeeded("it is for the Java of DJLServing or for its libraries"),
    },
    Rule {
        names: &[
            "OMP_NUM_THREADS",
            "NO_OMP_NUM_THREADS",
            "TF_NUM_INTEROP_THREADS",
            "TF_NUM_INTRAOP_THREADS",
            "TF_CPP_MIN_LOG_LEVEL",
        ],
        apply: Apply::NotNeeded(
            "set it for the worker if the model is in Python, which inherits it; the Llama handler has [handler] threads",
        ),
    },
    Rule {
        names: &["ENABLE_CUDA_GRAPHS"],
        apply: Apply::NotNeeded("it selects kernels of another engine"),
    },
    Rule {
        names: &["SM_NUM_GPUS"],
        apply: Apply::NotCarried(
            "it is the number of GPUs for a model: set [handler] tensor_parallel_degree",
        ),
    },
    Rule {
        names: &["SAGEMAKER_MAX_REQUEST_SIZE", "SAGEMAKER_MAX_PAYLOAD_IN_MB"],
        apply: Apply::NotCarried("a request has at most 8 MiB"),
    },
    Rule {
        names: &[
            "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT",
            "SAGEMAKER_MULTI_MODEL",
            "SAGEMAKER_SECURE_MODE",
        ],
        apply: Apply::NotCarried(
            "it is for SageMaker's endpoints, and a worker takes its requests from a queue",
        ),
    },
    Rule {
        names: &["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES"],
        apply: Apply::NotNeeded("set it for the worker, which inherits the environment"),
    },
    Rule {
        names: &["VLLM_ATTENTION_BACKEND", "VLLM_USE_V1"],
        apply: Apply::NotNeeded("it is for vLLM, which no worker of nsbridge runs"),
    },
    Rule {
        names: &["AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"],
        apply: Apply::NotNeeded(
            "set it for the worker, which finds the bucket's region and credentials so",
        ),
    },
];
