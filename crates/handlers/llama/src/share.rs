//! A slice that several threads write to, each to parts of its own.

#![expect(unsafe_code, reason = "the borrow checker cannot see that parts do not overlap")]

use std::marker::PhantomData;

/// A borrowed slice whose parts are lent again.
pub(crate) struct Disjoint<'a, T> {
    pointer: *mut T,
    len: usize,
    _borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: whoever takes a part promises that nobody else has it.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { pointer: slice.as_mut_ptr(), len: slice.len(), _borrowed: PhantomData }
    }

    /// `len` numbers from `start` on.
    ///
    /// # Safety
    ///
    /// While it lives, no other part that overlaps it may be taken.
    ///
    /// # Panics
    ///
    /// If that is not within the slice.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "that is what it is for")]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "a part of the slice");
        // SAFETY: within the slice; the caller sees to it that parts do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), len) }
    }
}
