//! Slice that several threads write to in disjoint parts.

#![expect(unsafe_code, reason = "the borrow checker cannot see that parts do not overlap")]

use std::marker::PhantomData;

/// Mutably borrowed slice that is handed out in parts.
#[derive(Debug)]
pub(crate) struct DisjointSlice<'a, T> {
    pointer: *mut T,
    len: usize,
    _borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: each caller of `part` promises that its part overlaps no other.
unsafe impl<T: Send> Send for DisjointSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for DisjointSlice<'_, T> {}

impl<'a, T> DisjointSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { pointer: slice.as_mut_ptr(), len: slice.len(), _borrowed: PhantomData }
    }

    /// Borrows `len` elements from `start` on.
    ///
    /// # Safety
    ///
    /// No other part that overlaps this one may be borrowed at the same time.
    ///
    /// # Panics
    ///
    /// Panics if the part is not within the slice.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "that is what it is for")]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "a part of the slice");
        // SAFETY: the part is within the slice, and the caller ensures that parts do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), len) }
    }
}
