//! Compiled kernels.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUmodule, cuFuncGetAttribute, cuFuncGetName,
    cuFuncGetParamInfo, cuFuncLoad, cuFuncSetAttribute, cuModuleEnumerateFunctions,
    cuModuleGetFunctionCount,
};
use cudarc::driver::{CudaStream, DriverError, result};

use super::failed;
use crate::args::STAGES_BYTES;
use crate::error::Result;

/// Aligns the code for the driver.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

static CODE: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin")));

/// Kernels on a device.
pub(super) struct Module {
    handle: CUmodule,
    pub(super) kernels: HashMap<String, Kernel>,
    stream: Arc<CudaStream>,
}

/// Kernel, and the size of the struct that it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    pub(super) function: CUfunction,
    pub(super) args: usize,
}

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for Module {}
// SAFETY: as above, by many at once.
unsafe impl Sync for Module {}

impl Module {
    /// Loads all kernels. The stream's context is the current one.
    pub(super) fn load(stream: &Arc<CudaStream>) -> Result<Self> {
        // SAFETY: the code is what CUDA's compiler wrote.
        let handle = unsafe { result::module::load_data(CODE.0.as_ptr().cast()) }
            .map_err(|error| failed("loading the kernels", error))?;
        let mut module = Self { handle, kernels: HashMap::new(), stream: stream.clone() };
        module.look_up().map_err(|error| failed("looking up the kernels", error))?;
        Ok(module)
    }

    fn look_up(&mut self) -> Result<(), DriverError> {
        let mut count = 0;
        // SAFETY: the module is loaded.
        unsafe { cuModuleGetFunctionCount(&raw mut count, self.handle) }.result()?;
        let mut functions = vec![null_mut(); count as usize];
        // SAFETY: there is room for as many.
        unsafe { cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, self.handle) }
            .result()?;
        for function in functions {
            let (mut name, mut offset, mut args) = (null(), 0, 0);
            // SAFETY: the function is one of the module, and has one parameter. The code is loaded
            // now, since that must not happen while launches are recorded.
            let name = unsafe {
                cuFuncGetName(&raw mut name, function).result()?;
                cuFuncGetParamInfo(function, 0, &raw mut offset, &raw mut args).result()?;
                cuFuncLoad(function).result()?;
                allow_shared_memory(function)?;
                CStr::from_ptr(name)
            };
            let name = name.to_string_lossy().into_owned();
            self.kernels.insert(name, Kernel { function, args });
        }
        Ok(())
    }
}

/// Lets launches give a kernel as much shared memory as products with many rows need. By default the
/// driver allows 48 KiB.
///
/// # Safety
///
/// The function is one of a loaded module.
unsafe fn allow_shared_memory(function: CUfunction) -> Result<(), DriverError> {
    use CUfunction_attribute::{
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MAX_DYNAMIC_BYTES,
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
    };
    let mut own = 0;
    // SAFETY: the caller vouches for the function, and the number can be written.
    unsafe {
        cuFuncGetAttribute(&raw mut own, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function).result()?;
        cuFuncSetAttribute(function, MAX_DYNAMIC_BYTES, STAGES_BYTES as i32 - own).result()
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("kernels", &self.kernels.len()).finish_non_exhaustive()
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // Launches may still run.
        let _ = self.stream.synchronize();
        // SAFETY: no launch uses the code any more.
        let _ = unsafe { result::module::unload(self.handle) };
    }
}
