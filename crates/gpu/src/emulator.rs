//! Device that runs the kernels on the CPU.
//!
//! It is slow and meant for tests. Memory ends at a page that cannot be accessed, so that an access
//! beyond a buffer ends the process. While a graph runs, all memory is closed but that of which its
//! launches have addresses.

#![expect(unsafe_code, reason = "the emulator is C++, and its memory is mapped")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_char, c_void};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::device::{Device, Graph, Launch};
use crate::error::{Error, Result};

unsafe extern "C" {
    fn nsbridge_gpu_kernel(
        name: *const c_char,
        bytes: *mut u32,
        threads: *mut u32,
    ) -> *const c_void;
    fn nsbridge_gpu_launch(
        kernel: *const c_void,
        blocks: *const u32,
        threads: u32,
        shared: u32,
        args: *const u8,
        order: u32,
    );
}

const PAGE: usize = 4096;

/// Alignment of addresses. An access up to this many bytes beyond a buffer may go unnoticed.
const ALIGNED: usize = 16;

/// Device that runs the kernels on the CPU.
#[derive(Debug)]
pub struct Emulator {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Order in which the threads of a block run.
    order: AtomicU32,
    launches: AtomicU64,
    downloaded: AtomicU64,
    /// Number of launches from which on the device fails, or 0 for never.
    broken_from: AtomicU64,
    kernels: Mutex<HashMap<&'static str, Kernel>>,
    /// Mapped pages by their address, with their length.
    pages: Mutex<BTreeMap<usize, usize>>,
    /// Launches of a capture.
    captured: Mutex<Option<Vec<Captured>>>,
}

/// Registered kernel.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    entry: *const c_void,
    args: u32,
    threads: u32,
}

// SAFETY: the entry is a static that is never written.
unsafe impl Send for Kernel {}

/// Recorded launch.
#[derive(Clone, Debug)]
struct Captured {
    kernel: Kernel,
    blocks: [u32; 2],
    threads: u32,
    shared: u32,
    args: Vec<u8>,
}

// SAFETY: as for `Kernel`.
unsafe impl Send for Captured {}
// SAFETY: as for `Kernel`.
unsafe impl Sync for Captured {}

impl Default for Emulator {
    fn default() -> Self {
        Self::new()
    }
}

impl Emulator {
    /// Creates a device without memory.
    pub fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Sets the order in which the threads of a block run: 0 ascending, 1 descending, all others
    /// shuffled. Correct kernels give the same results in each.
    pub fn set_order(&self, order: u32) {
        self.shared.order.store(order, Ordering::Relaxed);
    }

    /// Returns the number of launches so far, those of graphs included.
    pub fn launches(&self) -> u64 {
        self.shared.launches.load(Ordering::Relaxed)
    }

    /// Returns the bytes that were copied from the device so far.
    pub fn downloaded(&self) -> u64 {
        self.shared.downloaded.load(Ordering::Relaxed)
    }

    /// Makes the device fail after so many more launches, at least one.
    pub fn break_after(&self, launches: u64) {
        self.shared.broken_from.store(self.launches() + launches.max(1), Ordering::Relaxed);
    }
}

impl Shared {
    fn kernel(&self, name: &'static str) -> Result<Kernel> {
        if let Some(kernel) = self.kernels.lock().get(name) {
            return Ok(*kernel);
        }
        let text = CString::new(name).map_err(|_| Error::no_kernel(name))?;
        let (mut args, mut threads) = (0, 0);
        // SAFETY: the text ends in a zero, and both numbers can be written.
        let entry = unsafe { nsbridge_gpu_kernel(text.as_ptr(), &raw mut args, &raw mut threads) };
        if entry.is_null() {
            return Err(Error::no_kernel(name));
        }
        let kernel = Kernel { entry, args, threads };
        self.kernels.lock().insert(name, kernel);
        Ok(kernel)
    }

    fn captured(&self, launch: &Launch<'_>) -> Result<Captured> {
        let Launch { kernel: name, blocks, threads, shared, args } = *launch;
        let kernel = self.kernel(name)?;
        if kernel.args as usize != args.len() || threads > kernel.threads {
            return Err(Error::new(format!(
                "the kernel {name} takes {} bytes and {} threads, not {} and {threads}",
                kernel.args,
                kernel.threads,
                args.len()
            )));
        }
        Ok(Captured { kernel, blocks, threads, shared, args: args.to_vec() })
    }

    /// # Safety
    ///
    /// The kernel stays within allocated memory.
    unsafe fn run(&self, launch: &Captured) {
        self.launches.fetch_add(1, Ordering::Relaxed);
        let Captured { kernel, blocks, threads, shared, args } = launch;
        let order = self.order.load(Ordering::Relaxed);
        // SAFETY: the arguments have the size that the kernel takes; the caller vouches for the
        // rest.
        unsafe {
            let (blocks, args) = (blocks.as_ptr(), args.as_ptr());
            nsbridge_gpu_launch(kernel.entry, blocks, *threads, *shared, args, order);
        }
    }

    /// Returns the start of the pages that an address belongs to.
    fn pages_of(&self, address: usize) -> Option<usize> {
        let pages = self.pages.lock();
        let (start, bytes) = pages.range(..=address).next_back()?;
        (address < start + bytes).then_some(*start)
    }

    /// Opens or closes all memory but the given pages.
    fn protect(&self, but: &[usize], flags: MprotectFlags) -> Result<()> {
        for (start, bytes) in self.pages.lock().iter().filter(|(start, _)| !but.contains(start)) {
            // SAFETY: the pages are mapped, and only the emulator uses them.
            unsafe { mprotect(*start as *mut c_void, *bytes, flags) }.map_err(system)?;
        }
        Ok(())
    }
}

impl Device for Emulator {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        let own = bytes.next_multiple_of(PAGE).max(PAGE);
        let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: no address is given, so no other memory is replaced.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), own + PAGE, flags.0, flags.1) }
            .map_err(system)?;
        // SAFETY: the last page is one of the mapping.
        unsafe { mprotect(start.byte_add(own), PAGE, MprotectFlags::empty()) }.map_err(system)?;
        self.shared.pages.lock().insert(start as usize, own);
        let address = start as usize + own - bytes.next_multiple_of(ALIGNED).min(own);
        Ok(address as u64)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        let own = bytes.next_multiple_of(PAGE).max(PAGE);
        let start = (address as usize + bytes.next_multiple_of(ALIGNED).min(own)) - own;
        self.shared.pages.lock().remove(&start);
        // SAFETY: the caller does not use the memory any more.
        let freed = unsafe { munmap(start as *mut c_void, own + PAGE) };
        debug_assert!(freed.is_ok(), "pages that were mapped");
    }

    unsafe fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller vouches for the address.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        self.shared.downloaded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        // SAFETY: the caller vouches for the address.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let broken_from = self.shared.broken_from.load(Ordering::Relaxed);
        if broken_from > 0 && self.shared.launches.load(Ordering::Relaxed) >= broken_from {
            return Err(Error::new("the emulator was told to fail"));
        }
        let launch = self.shared.captured(launch)?;
        if let Some(captured) = &mut *self.shared.captured.lock() {
            captured.push(launch);
            return Ok(());
        }
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.shared.run(&launch) };
        Ok(())
    }

    fn capture(&self, run: &mut dyn FnMut() -> Result<()>) -> Result<Box<dyn Graph>> {
        *self.shared.captured.lock() = Some(Vec::new());
        let done = run();
        let launches = self.shared.captured.lock().take().unwrap_or_default();
        done?;
        // Each word of the arguments that is an address of the device's memory.
        let words = launches.iter().flat_map(|launch| launch.args.as_chunks::<8>().0);
        let mut touched: Vec<usize> = words
            .filter_map(|word| self.shared.pages_of(u64::from_le_bytes(*word) as usize))
            .collect();
        touched.sort_unstable();
        touched.dedup();
        Ok(Box::new(Replay { shared: self.shared.clone(), launches, touched }))
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn kind(&self) -> String {
        "emulator".to_owned()
    }

    fn processors(&self) -> u32 {
        2
    }

    fn free_memory(&self) -> Option<u64> {
        None
    }
}

/// Recorded launches, and the start of the pages that they may use.
struct Replay {
    shared: Arc<Shared>,
    launches: Vec<Captured>,
    touched: Vec<usize>,
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("launches", &self.launches.len()).finish_non_exhaustive()
    }
}

impl Graph for Replay {
    unsafe fn launch(&self) -> Result<()> {
        self.shared.protect(&self.touched, MprotectFlags::empty())?;
        for launch in &self.launches {
            // SAFETY: the caller vouches that the memory is allocated.
            unsafe { self.shared.run(launch) };
        }
        self.shared.protect(&self.touched, MprotectFlags::READ | MprotectFlags::WRITE)
    }
}

fn system(error: rustix::io::Errno) -> Error {
    Error::new(format!("memory of the emulator: {error}"))
}
