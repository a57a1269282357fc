//! Memory for weights and caches: aligned to cache lines, in huge pages where available.

#![expect(unsafe_code, reason = "no Vec has an alignment beyond its elements'")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::ptr::NonNull;

use crate::error::Error;

const ALIGN: usize = 64;
const HUGE_PAGE: usize = 2 << 20;

/// Types for which every bit pattern is a valid value.
///
/// # Safety
///
/// The type must have no padding, no invalid bit patterns, no drop, and at most the alignment of a
/// cache line.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: every bit pattern is a valid number.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}

/// Fixed-size array of numbers, initialized to zero, aligned to cache lines.
///
/// On Linux an array of 4 MiB and more takes its memory page by page when it is first written, in huge
/// pages where the system has them. Huge pages need fewer TLB entries, which gives a fifth more bandwidth
/// in decoding.
///
/// ```
/// use nsbridge_kernels::memory::AlignedBuffer;
///
/// let mut numbers = AlignedBuffer::<f32>::zeroed(1000)?;
/// numbers[7] = 1.5;
/// assert_eq!(numbers.iter().sum::<f32>(), 1.5);
/// assert_eq!(numbers.as_ptr().addr() % 64, 0);
/// # Ok::<(), nsbridge_kernels::Error>(())
/// ```
pub struct AlignedBuffer<T: Plain> {
    pointer: NonNull<T>,
    len: usize,
}

// SAFETY: it owns plain numbers.
unsafe impl<T: Plain> Send for AlignedBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for AlignedBuffer<T> {}

impl<T: Plain> AlignedBuffer<T> {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    ///
    /// Returns an error if the allocation fails.
    pub fn zeroed(len: usize) -> Result<Self, Error> {
        if len == 0 {
            return Ok(Self { pointer: NonNull::dangling(), len });
        }
        let none = || Error::OutOfMemory(len);
        let layout = layout::<T>(len).ok_or_else(none)?;
        let zeros = match mapped(layout) {
            Some(size) => map(size),
            // SAFETY: the layout has a nonzero size.
            None => NonNull::new(unsafe { alloc_zeroed(layout) }),
        };
        Ok(Self { pointer: zeros.ok_or_else(none)?.cast::<T>(), len })
    }
}

fn layout<T: Plain>(len: usize) -> Option<Layout> {
    Layout::from_size_align(len.checked_mul(size_of::<T>())?, ALIGN).ok()
}

/// Returns the size of the mapping that holds an array; `None` if the allocator has it.
fn mapped(layout: Layout) -> Option<usize> {
    let is_large = cfg!(target_os = "linux") && layout.size() >= 2 * HUGE_PAGE;
    is_large.then(|| layout.size().next_multiple_of(HUGE_PAGE))
}

/// Maps zeros at the beginning of a huge page. `size` is a multiple of a huge page.
#[cfg(target_os = "linux")]
fn map(size: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    let wide = size.checked_add(HUGE_PAGE)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the system chooses the address, so that nothing else is mapped there.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), wide, access, flags) }.ok()?;
    let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
    let aligned = start.wrapping_byte_add(before);
    // SAFETY: these parts of the new mapping are not used. Where they cannot be unmapped, they stay
    // without memory.
    let _ = unsafe {
        let end = aligned.wrapping_byte_add(size);
        [(start, before), (end, HUGE_PAGE - before)]
            .into_iter()
            .filter(|(_, size)| *size > 0)
            .try_for_each(|(place, size)| munmap(place, size))
    };
    // The advice comes before the first write to a page, which decides its size.
    // SAFETY: these are pages of the new mapping, and the advice does not change their content.
    let _ = unsafe { madvise(aligned, size, Advice::LinuxHugepage) };
    NonNull::new(aligned.cast())
}

#[cfg(not(target_os = "linux"))]
fn map(_size: usize) -> Option<NonNull<u8>> {
    None
}

impl<T: Plain> Drop for AlignedBuffer<T> {
    fn drop(&mut self) {
        let Some(layout) = layout::<T>(self.len).filter(|layout| layout.size() > 0) else { return };
        let pointer = self.pointer.as_ptr();
        match mapped(layout) {
            #[cfg(target_os = "linux")]
            Some(size) => {
                // SAFETY: mapped with this size, and not used afterwards.
                let _ = unsafe { rustix::mm::munmap(pointer.cast(), size) };
            }
            // SAFETY: allocated with this layout, and not used afterwards.
            _ => unsafe { dealloc(pointer.cast(), layout) },
        }
    }
}

impl<T: Plain> Deref for AlignedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the allocation holds `len` initialized numbers.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for AlignedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl<T: Plain> fmt::Debug for AlignedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({})", self.len)
    }
}

/// Returns the bytes that this process may still allocate, if the system reports them: the least of
/// the machine's available memory and what is left in its control groups (cgroup v2:
/// <https://docs.kernel.org/admin-guide/cgroup-v2.html>).
pub fn available() -> Option<u64> {
    let free = number(read("/proc/meminfo")?.split_once("MemAvailable:")?.1)? * 1024;
    let own = read("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    Some(in_groups("/sys/fs/cgroup".as_ref(), own).map_or(free, |left| left.min(free)))
}

/// Returns what a group and its ancestors leave to a process, or `None` without any limit.
fn in_groups(root: &Path, own: &str) -> Option<u64> {
    let own = root.join(own.trim_start_matches('/'));
    let within = own.ancestors().take_while(|group| group.starts_with(root));
    let left = |group: &Path| {
        let file = |name: &str| read(group.join(name));
        left(&file("memory.max")?, &file("memory.current")?, &file("memory.stat")?)
    };
    within.filter_map(left).min()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Returns what a control group with a limit has left. Its page cache counts as free, since the
/// kernel reclaims it.
fn left(most: &str, current: &str, stat: &str) -> Option<u64> {
    let cached = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        matches!(name, "active_file" | "inactive_file").then(|| number(bytes))?
    };
    let cached: u64 = stat.lines().filter_map(cached).sum();
    Some(number(most)?.saturating_sub(number(current)?.saturating_sub(cached)))
}

fn number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{AlignedBuffer, in_groups, left};

    #[test]
    fn what_a_group_has_left_is_its_limit_without_what_it_uses_but_for_files() {
        let stat = "anon 300\nfile 900\nshmem 50\ninactive_file 600\nactive_file 250\n";
        assert_eq!(left("2000\n", "1200\n", stat), Some(2000 - 350));
        assert_eq!(left("1000\n", "2200\n", stat), Some(0));
        assert_eq!(left("max\n", "1200\n", stat), None);
    }

    #[test]
    fn the_least_of_all_groups_around_is_left() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, most: &str, current: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            for (name, text) in [("max", most), ("current", current), ("stat", "anon 3\n")] {
                std::fs::write(path.join(format!("memory.{name}")), text).unwrap();
            }
        };
        group("a/b", "max\n", "100\n");
        assert_eq!(in_groups(root.path(), "/a/b"), None);
        group("a", "1000\n", "300\n");
        assert_eq!(in_groups(root.path(), "/a/b"), Some(700));
        group("a/b", "400\n", "100\n");
        assert_eq!(in_groups(root.path(), "/a/b"), Some(300));
        // As in a container: the root has a limit, and the named group may not be visible.
        group(".", "500\n", "1\n");
        for own in ["/", "", "/elsewhere/c"] {
            assert_eq!(in_groups(root.path(), own), Some(499), "{own}");
        }
    }

    #[test]
    fn memory_is_zeroed_aligned_and_one_s_own() {
        for len in [0, 1, 17, 1 << 20, 3 << 20, (3 << 20) + 1] {
            let mut memory = AlignedBuffer::<f32>::zeroed(len).unwrap();
            assert!(memory.iter().all(|x| x.to_bits() == 0) && memory.len() == len);
            assert!(len == 0 || memory.as_ptr().addr().is_multiple_of(64));
            memory.fill(1.5);
            assert!(memory.iter().all(|x| *x == 1.5));
        }
        assert!(AlignedBuffer::<f32>::zeroed(usize::MAX / 2).is_err());
    }
}
