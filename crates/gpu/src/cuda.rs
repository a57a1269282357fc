//! NVIDIA GPUs, by CUDA's driver.

#![expect(unsafe_code, reason = "the driver works with addresses and handles")]

mod module;
mod staging;

use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdevice_attribute, CUgraphInstantiate_flags, CUmemAccess_flags, CUmemAccessDesc,
    CUmemLocationType, CUmemPool_attribute, CUmemoryPool, CUstreamCaptureMode,
    cuDeviceCanAccessPeer, cuMemPoolSetAccess,
};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError, result};
use parking_lot::Mutex;

use crate::device::{Device, Graph, Launch};
use crate::error::{Error, Result};
use module::Module;
use staging::{Downloads, Uploads};

/// NVIDIA GPU, of compute capability 8.0 or higher.
///
/// All work is enqueued on one stream. Memory comes from the device's pool, which keeps what is
/// freed for later allocations.
///
/// # State
///
/// The type compiles and links with CUDA 13.0. No part of it has run on a GPU yet.
pub struct Cuda {
    stream: Arc<CudaStream>,
    module: Arc<Module>,
    uploads: Mutex<Uploads>,
    downloads: Mutex<Downloads>,
    processors: u32,
    kind: String,
}

impl Cuda {
    /// Opens the device with this number, with a stream of its own.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such device, or if it cannot run the kernels.
    pub fn new(ordinal: usize) -> Result<Self> {
        let open = || CudaContext::new(ordinal)?.new_stream();
        Self::on(open().map_err(|error| failed(&format!("opening GPU {ordinal}"), error))?)
    }

    /// Uses the stream of someone else. Work on both sides runs in the order of the calls.
    ///
    /// The default stream runs kernels, but [`capture`](Device::capture) fails on it.
    ///
    /// # Errors
    ///
    /// Returns an error if the device cannot run the kernels.
    pub fn on(stream: Arc<CudaStream>) -> Result<Self> {
        let context = stream.context();
        context.bind_to_thread().map_err(|error| failed("using a GPU", error))?;
        if !context.has_async_alloc() {
            return Err(Error::new("the GPU has no pool of memory"));
        }
        keep_memory(context).map_err(|error| failed("setting up a GPU's pool of memory", error))?;
        let processors = context
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(|error| failed("asking for the number of multiprocessors", error))?;
        let asked = |error| failed("asking for the name of a GPU", error);
        let (major, minor) = context.compute_capability().map_err(asked)?;
        let kind = format!("{} {major}.{minor}", context.name().map_err(asked)?);
        let module = Arc::new(Module::load(&stream)?);
        let uploads = Mutex::new(Uploads::new(&stream)?);
        let downloads = Mutex::new(Downloads::new(&stream)?);
        let processors = processors.unsigned_abs();
        Ok(Self { stream, module, uploads, downloads, processors, kind })
    }

    /// Lets another GPU read and write this one's memory. Returns false if they are not connected.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    pub fn share_with(&self, other: &Self) -> Result<bool> {
        let (own, other) = (self.stream.context(), other.stream.context());
        if own.cu_device() == other.cu_device() {
            return Ok(true);
        }
        let what = format!("letting GPU {} read GPU {}", other.ordinal(), own.ordinal());
        let failed = |error| failed(&what, error);
        self.bind()?;
        let mut can = 0;
        // SAFETY: both devices exist, and the number can be written.
        unsafe { cuDeviceCanAccessPeer(&raw mut can, other.cu_device(), own.cu_device()) }
            .result()
            .map_err(failed)?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: a struct of integers.
        let mut access: CUmemAccessDesc = unsafe { std::mem::zeroed() };
        access.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let place = (&raw mut access.location).cast::<i32>();
        // SAFETY: in all versions, a location begins with its type and the number of the device.
        unsafe {
            place.write(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as i32);
            place.add(1).write(other.cu_device());
        }
        let pool = pool(own).map_err(failed)?;
        // SAFETY: the pool is the device's, and there is one description.
        unsafe { cuMemPoolSetAccess(pool, &raw const access, 1) }.result().map_err(failed)?;
        Ok(true)
    }

    /// Makes the device's context the current one of this thread.
    fn bind(&self) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(|error| failed("using a GPU", error))
    }

    /// Returns the bytes that the pool keeps but are not allocated.
    fn kept(&self) -> Result<u64, DriverError> {
        let pool = pool(self.stream.context())?;
        let read = |attribute| {
            let mut number = 0u64;
            // SAFETY: the attributes are numbers of 64 bits.
            unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut number).cast())? };
            Ok::<_, DriverError>(number)
        };
        let reserved = read(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = read(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Ok(reserved.saturating_sub(used))
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("ordinal", &self.stream.context().ordinal()).finish()
    }
}

impl Device for Cuda {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.bind()?;
        // The driver refuses an allocation of nothing.
        let bytes = bytes.max(1);
        let stream = self.stream.cu_stream();
        let failed = |error| failed(&format!("allocating {bytes} bytes on the GPU"), error);
        // SAFETY: the stream is open, and the memory is written below before it is read.
        let address = unsafe { result::malloc_async(stream, bytes) }.map_err(failed)?;
        // SAFETY: the memory was allocated on this stream.
        if let Err(error) = unsafe { result::memset_d8_async(address, 0, bytes, stream) } {
            // SAFETY: nothing else uses the memory.
            let _ = unsafe { result::free_async(address, stream) };
            return Err(failed(error));
        }
        Ok(address)
    }

    unsafe fn free(&self, address: u64, _bytes: usize) {
        if self.bind().is_ok() {
            // A device that fails here fails in the next call too, which returns the error.
            // SAFETY: the address is that of an allocation, and the caller does not use it later.
            let _ = unsafe { result::free_async(address, self.stream.cu_stream()) };
        }
    }

    unsafe fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller vouches for the address.
        unsafe { self.uploads.lock().copy(&self.stream, to, bytes) }
            .map_err(|error| failed("copying to the GPU", error))
    }

    unsafe fn download(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller vouches for the address.
        unsafe { self.downloads.lock().copy(&self.stream, from, bytes) }
            .map_err(|error| failed("copying from the GPU", error))
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let Launch { kernel: name, blocks: [x, y], threads, shared, args } = *launch;
        let kernel = self.module.kernels.get(name).ok_or_else(|| Error::no_kernel(name))?;
        if kernel.args != args.len() {
            let (takes, given) = (kernel.args, args.len());
            return Err(Error::new(format!("the kernel {name} takes {takes} bytes, not {given}")));
        }
        if x == 0 || y == 0 {
            return Ok(());
        }
        self.bind()?;
        let mut args = [args.as_ptr().cast_mut().cast::<c_void>()];
        let (blocks, threads, stream) = ((x, y, 1), (threads, 1, 1), self.stream.cu_stream());
        let function = kernel.function;
        // SAFETY: the kernel takes one struct of this size, which the driver copies; the caller
        // vouches for the rest.
        unsafe { result::launch_kernel(function, blocks, threads, shared, stream, &mut args) }
            .map_err(|error| failed(&format!("launching the kernel {name}"), error))
    }

    fn capture(&self, run: &mut dyn FnMut() -> Result<()>) -> Result<Box<dyn Graph>> {
        let failed = |error| failed("recording launches", error);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(failed)?;
        // The recording ends in any case, or else all later work would be recorded.
        let done = catch_unwind(AssertUnwindSafe(run));
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0));
        done.unwrap_or_else(|panic| resume_unwind(panic))?;
        // A recording without launches has no graph.
        let graph = graph.map_err(failed)?.map(|graph| Mutex::new(Recorded(graph)));
        Ok(Box::new(Replay { graph, stream: self.stream.clone(), module: self.module.clone() }))
    }

    fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(|error| failed("waiting for the GPU", error))
    }

    fn kind(&self) -> String {
        self.kind.clone()
    }

    fn processors(&self) -> u32 {
        self.processors
    }

    fn free_memory(&self) -> Option<u64> {
        let (free, _) = self.stream.context().mem_get_info().ok()?;
        Some(free as u64 + self.kept().ok()?)
    }
}

/// Graph of the driver.
struct Recorded(CudaGraph);

// SAFETY: a graph may be used on any thread, by one at a time.
unsafe impl Send for Recorded {}

/// Recorded launches.
struct Replay {
    graph: Option<Mutex<Recorded>>,
    stream: Arc<CudaStream>,
    /// The code of the launches.
    #[expect(dead_code, reason = "kept until the graph is gone")]
    module: Arc<Module>,
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").finish_non_exhaustive()
    }
}

impl Graph for Replay {
    unsafe fn launch(&self) -> Result<()> {
        let Some(graph) = &self.graph else { return Ok(()) };
        graph.lock().0.launch().map_err(|error| failed("launching a graph", error))
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // The driver destroys the graph in the current context.
        let _ = self.stream.context().bind_to_thread();
    }
}

/// Returns the pool that allocations come from.
fn pool(context: &CudaContext) -> Result<CUmemoryPool, DriverError> {
    // SAFETY: the device is the context's.
    unsafe { result::device::get_mem_pool(context.cu_device()) }
}

/// Sets the device's pool to keep all memory that is freed. By default, it returns it to the driver
/// whenever a thread waits for the device.
///
/// # Errors
///
/// Returns the driver's error.
pub fn keep_memory(context: &CudaContext) -> Result<(), DriverError> {
    let (pool, mut all) = (pool(context)?, u64::MAX);
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a number of 64 bits.
    unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut all).cast()) }
}

/// Returns an error with the driver's text.
fn failed(what: &str, error: DriverError) -> Error {
    let text = error.error_string().map_or("unknown error".into(), |text| text.to_string_lossy());
    let name = error.error_name().map_or("unknown".into(), |name| name.to_string_lossy());
    Error::new(format!("{what}: {text} ({name})"))
}
