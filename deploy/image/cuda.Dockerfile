# Image of a worker on NVIDIA GPUs: the binary of `cargo xtask cuda`, on CUDA's run-time libraries.
#
#     cargo xtask cuda
#     docker build -f deploy/image/cuda.Dockerfile -t nsbridge:cuda .
#     docker run --gpus all --read-only nsbridge:cuda
#
# The binary is for the GPUs that CUDA_COMPUTE_CAP named at its build. Models are mounted or come from a bucket.
FROM nvidia/cuda:13.0.0-runtime-ubuntu24.04
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates tini libnccl2 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 nsbridge \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin nsbridge \
    && install --directory --owner 10001 --group 10001 --mode 700 /keys
COPY target/cuda/release/nsbridge /usr/bin/nsbridge
COPY examples/models/tale-7m /models/tale-7m
COPY examples/models/tale-1m /models/tale-1m
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/nsbridge/
COPY deploy/container.toml /etc/nsbridge/worker.toml
ENV NSBRIDGE_HANDLER__DEVICE=cuda
USER 10001:10001
EXPOSE 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=6s --start-period=30m CMD ["nsbridge", "health"]
ENTRYPOINT ["/usr/bin/tini", "--", "nsbridge"]
CMD ["worker", "--config", "/etc/nsbridge/worker.toml"]
