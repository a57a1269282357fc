//! Buffer that several threads fill at once and that then has a single owner.
//!
//! The bytes of a tensor arrive in pieces, out of order and on several threads. They must end up in
//! one contiguous buffer, at an alignment that lets the buffer become a `Vec` of numbers without
//! another copy.

#![expect(unsafe_code, reason = "a Vec of any element type can only be made from raw parts")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::mem::{ManuallyDrop, align_of, size_of};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Owned bytes with a chosen alignment.
pub struct Buffer(Memory);

/// Buffer whose [`Segment`]s are still being filled.
pub struct Filling(Arc<Memory>);

/// Part of a buffer under construction, with exclusive access for its holder.
pub struct Segment {
    memory: Arc<Memory>,
    range: Range<usize>,
}

/// Type for which every bit pattern is a valid value.
///
/// # Safety
///
/// The type has no padding and no invalid bit pattern, and needs no drop.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty),*) => { $(
        // SAFETY: a number of at most one machine word.
        unsafe impl Plain for $type {}
    )* };
}

plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

#[cfg(feature = "half")]
plain!(half::bf16, half::f16);

impl Buffer {
    /// Allocates `len` zero bytes, cut at `cuts` into segments that can be filled independently.
    ///
    /// `align` is the alignment of the future elements, in bytes. The cuts ascend and lie within
    /// the buffer. The result has `cuts.len() + 1` segments.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory cannot be allocated.
    ///
    /// # Panics
    ///
    /// Panics if the cuts are out of order, or if `align` is not a power of two.
    pub fn filled_by(len: usize, align: usize, cuts: &[usize]) -> Result<(Filling, Vec<Segment>)> {
        let memory = Arc::new(Memory::zeroed(len, align)?);
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([len]);
        let segment = |(start, end)| {
            assert!(start <= end && end <= len, "cuts ascend and lie within the buffer");
            Segment { memory: memory.clone(), range: start..end }
        };
        let segments = starts.zip(ends).map(segment).collect();
        Ok((Filling(memory), segments))
    }

    /// Converts the bytes to a `Vec` without a copy.
    ///
    /// # Errors
    ///
    /// Returns the buffer itself if it was not allocated for elements of this alignment and size.
    pub fn into_vec<T: Plain>(self) -> Result<Vec<T>, Self> {
        let memory = &self.0;
        if memory.align != align_of::<T>() || !memory.len.is_multiple_of(size_of::<T>()) {
            return Err(self);
        }
        if memory.len == 0 {
            return Ok(Vec::new());
        }
        let memory = ManuallyDrop::new(self.0);
        let (pointer, count) = (memory.pointer.as_ptr().cast::<T>(), memory.len / size_of::<T>());
        // SAFETY: the memory was allocated by the global allocator with the layout of `count`
        // elements of T, all of it is initialized, any bytes are a valid T, and it has no other
        // owner.
        Ok(unsafe { Vec::from_raw_parts(pointer, count, count) })
    }
}

impl Filling {
    /// Returns the buffer once all of its segments are dropped.
    ///
    /// # Errors
    ///
    /// Returns `self` while a segment is still held.
    pub fn finish(self) -> Result<Buffer, Self> {
        Arc::try_unwrap(self.0).map(Buffer).map_err(Self)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: initialized when it was allocated; no segment is left that could write.
        unsafe { std::slice::from_raw_parts(self.0.pointer.as_ptr(), self.0.len) }
    }
}

impl Segment {
    /// Populates the pages of a range that is about to be written, in one system call. A page fault
    /// for each page instead costs half as much again. Where the system does not support the call,
    /// the pages fault on write.
    ///
    /// # Panics
    ///
    /// Panics if the range is not within the segment.
    pub fn populate(&mut self, range: Range<usize>) {
        let bytes = &mut self[range];
        let page = rustix::param::page_size();
        let start = bytes.as_mut_ptr().map_addr(|address| address / page * page);
        let len = bytes.as_ptr().addr() + bytes.len() - start.addr();
        // SAFETY: the pages belong to this allocation, and the advice changes no content.
        let _ = unsafe {
            rustix::mm::madvise(start.cast(), len, rustix::mm::Advice::LinuxPopulateWrite)
        };
    }
}

impl Deref for Segment {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: within the allocation, initialized, and in no other segment's range.
        unsafe {
            let start = self.memory.pointer.as_ptr().add(self.range.start);
            std::slice::from_raw_parts(start, self.range.len())
        }
    }
}

impl DerefMut for Segment {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; a segment is not Clone and is borrowed mutably.
        unsafe {
            let start = self.memory.pointer.as_ptr().add(self.range.start);
            std::slice::from_raw_parts_mut(start, self.range.len())
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.0.len)
    }
}

impl fmt::Debug for Filling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filling({} bytes)", self.0.len)
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({:?})", self.range)
    }
}

struct Memory {
    pointer: NonNull<u8>,
    len: usize,
    align: usize,
}

// SAFETY: plain memory; `Buffer` and `Segment` control access to its parts.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn zeroed(len: usize, align: usize) -> Result<Self> {
        assert!(align.is_power_of_two(), "an alignment is a power of two");
        let none = || Error::fatal(format!("there is no memory for {len} bytes of a model"));
        if len == 0 {
            return Ok(Self { pointer: NonNull::dangling(), len, align });
        }
        let layout = Layout::from_size_align(len, align).map_err(|_| none())?;
        // SAFETY: the layout has a nonzero size.
        let pointer = unsafe { alloc_zeroed(layout) };
        Ok(Self { pointer: NonNull::new(pointer).ok_or_else(none)?, len, align })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated with this layout, and dropped once.
            unsafe {
                let layout = Layout::from_size_align_unchecked(self.len, self.align);
                dealloc(self.pointer.as_ptr(), layout);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::Buffer;

    #[test]
    fn segments_are_filled_on_several_threads_and_make_one_buffer() {
        let (filling, segments) = Buffer::filled_by(10 << 20, 4, &[5, 5, 1 << 20]).unwrap();
        assert_eq!(
            segments.iter().map(|s| s.len()).collect::<Vec<_>>(),
            [5, 0, (1 << 20) - 5, 9 << 20]
        );
        let filling = filling.finish().unwrap_err();
        thread::scope(|scope| {
            for (i, mut segment) in segments.into_iter().enumerate() {
                scope.spawn(move || {
                    segment.fill(i as u8 + 1);
                    // Called later than intended: existing content must stay, in this segment and
                    // its neighbors.
                    segment.populate(segment.len() / 3..segment.len());
                });
            }
        });
        let buffer = filling.finish().unwrap();
        assert_eq!(buffer[..6], [1, 1, 1, 1, 1, 3]);
        assert_eq!((buffer[(1 << 20) - 1], buffer[1 << 20], buffer[(10 << 20) - 1]), (3, 4, 4));
    }

    #[test]
    fn a_buffer_becomes_a_vec_of_what_it_was_made_for_and_of_nothing_else() {
        let of_floats = |len| {
            let (filling, segments) = Buffer::filled_by(len, 4, &[]).unwrap();
            for mut segment in segments {
                segment.copy_from_slice(&1.5f32.to_le_bytes().repeat(len / 4)[..len]);
            }
            filling.finish().unwrap()
        };
        let whole = of_floats(8 << 20);
        let address = whole.as_ptr() as usize;
        let numbers = whole.into_vec::<f32>().unwrap();
        assert_eq!((numbers.len(), numbers[7]), (2 << 20, 1.5));
        assert_eq!(numbers.as_ptr() as usize, address, "nothing was copied");
        assert!(of_floats(8).into_vec::<u16>().is_err());
        assert_eq!(of_floats(0).into_vec::<f32>().unwrap(), Vec::<f32>::new());
    }
}
