//! Devices: memory, launches, and recorded launches.

#![expect(unsafe_code, reason = "kernels work with addresses")]

use std::fmt;
use std::sync::Arc;

use crate::error::Result;

/// Device that runs the kernels: a GPU or the emulator.
///
/// Work on a device runs in the order of the calls. Only [`download`](Self::download) and
/// [`synchronize`](Self::synchronize) wait for it.
pub trait Device: fmt::Debug + Send + Sync {
    /// Allocates zeroed memory and returns its address, a multiple of 256.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short.
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Frees the memory at an address that [`allocate`](Self::allocate) returned, after all work
    /// that was enqueued before.
    ///
    /// # Safety
    ///
    /// No later work uses the memory.
    unsafe fn free(&self, address: u64, bytes: usize);

    /// Copies bytes to the device.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Safety
    ///
    /// The memory from `to` on is allocated.
    unsafe fn upload(&self, to: u64, bytes: &[u8]) -> Result<()>;

    /// Waits for the work so far, and copies bytes from the device.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails, now or in work that was enqueued before.
    ///
    /// # Safety
    ///
    /// The memory from `from` on is allocated.
    unsafe fn download(&self, from: u64, bytes: &mut [u8]) -> Result<()>;

    /// Enqueues a kernel.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such kernel, if its arguments have another size, or if the
    /// device fails.
    ///
    /// # Safety
    ///
    /// The kernel stays within allocated memory with these arguments.
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// Records the launches of `run`, which does nothing else on the device, instead of running
    /// them.
    ///
    /// # Errors
    ///
    /// Returns the error of `run`, or of the device.
    fn capture(&self, run: &mut dyn FnMut() -> Result<()>) -> Result<Box<dyn Graph>>;

    /// Waits for the work so far.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails, now or in work that was enqueued before.
    fn synchronize(&self) -> Result<()>;

    /// Returns the name of the kind of device: devices of one kind give the same bits.
    fn kind(&self) -> String;

    /// Returns the number of multiprocessors, each of which runs blocks of threads.
    fn processors(&self) -> u32;

    /// Returns the free memory in bytes, if the device reports it.
    fn free_memory(&self) -> Option<u64>;
}

/// Recorded launches.
pub trait Graph: fmt::Debug + Send + Sync {
    /// Enqueues the launches again, with the same arguments.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Safety
    ///
    /// The memory of the launches is still allocated.
    unsafe fn launch(&self) -> Result<()>;
}

/// Launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Number of blocks in both dimensions.
    pub blocks: [u32; 2],
    /// Number of threads of a block.
    pub threads: u32,
    /// Bytes of shared memory beside what the kernel has of itself.
    pub shared: u32,
    /// Bytes of the struct that the kernel takes.
    pub args: &'a [u8],
}

/// Memory of a device.
#[derive(Debug)]
pub struct Buffer {
    device: Arc<dyn Device>,
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// Allocates zeroed memory.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short.
    pub fn zeroed(device: &Arc<dyn Device>, bytes: usize) -> Result<Self> {
        let address = device.allocate(bytes)?;
        Ok(Self { device: device.clone(), address, bytes })
    }

    /// Allocates memory with these contents.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short or the device fails.
    pub fn of<T: Plain>(device: &Arc<dyn Device>, contents: &[T]) -> Result<Self> {
        let buffer = Self::zeroed(device, size_of_val(contents))?;
        buffer.write(0, contents)?;
        Ok(buffer)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Copies numbers to the device, from this byte on.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is too small.
    pub fn write<T: Plain>(&self, at: usize, numbers: &[T]) -> Result<()> {
        let bytes = bytes_of(numbers);
        if bytes.is_empty() {
            return Ok(());
        }
        let to = self.place(at, bytes.len());
        // SAFETY: the place is within the buffer.
        unsafe { self.device.upload(to, bytes) }
    }

    /// Copies numbers from the device, from this byte on.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails, now or in work that was enqueued before.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is too small.
    pub fn read<T: Plain>(&self, at: usize, numbers: &mut [T]) -> Result<()> {
        let bytes = size_of_val(numbers);
        if bytes == 0 {
            return self.device.synchronize();
        }
        let from = self.place(at, bytes);
        // SAFETY: numbers of this type may have any bits, and the slice is that long.
        let numbers =
            unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast::<u8>(), bytes) };
        // SAFETY: the place is within the buffer.
        unsafe { self.device.download(from, numbers) }
    }

    /// Returns the address of `bytes` bytes from the byte `at` on.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is too small.
    pub(crate) fn place(&self, at: usize, bytes: usize) -> u64 {
        let within = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(within, "bytes {at}..+{bytes} are not within a buffer of {}", self.bytes);
        self.address + at as u64
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the address is that of an allocation, and launches borrow the buffers.
        unsafe { self.device.free(self.address, self.bytes) }
    }
}

/// Numbers without padding for which any bits are valid.
///
/// # Safety
///
/// The type must be so.
pub unsafe trait Plain: Copy {}

// SAFETY: integers and floats.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for i16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}

/// Returns the bytes of numbers.
pub(crate) fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: the type has no padding, and the slice is that long.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast::<u8>(), size_of_val(numbers)) }
}

/// Returns the address of a buffer, or 0 for none.
pub(crate) fn address(buffer: Option<&Buffer>) -> u64 {
    buffer.map_or(0, |buffer| buffer.place(0, 0))
}
