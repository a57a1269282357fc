//! Rendezvous of the ranks of a model, each on its device.

#![expect(unsafe_code, reason = "kernels are launched with addresses")]

use std::sync::Arc;
use std::time::Duration;

use crate::args::{Args, MeetArgs, RANKS};
use crate::device::{Buffer, Device};
use crate::error::Result;
use crate::rows::Count;

/// Memory of a rank by which the others tell it how far they are.
#[derive(Debug)]
pub struct Flags {
    /// One for each rank.
    flags: Buffer,
    /// One more than the number of a rank that was waited for in vain, or 0.
    lost: Buffer,
}

impl Flags {
    /// Allocates flags for ranks that have come to no rendezvous yet.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short.
    pub fn new(device: &Arc<dyn Device>) -> Result<Self> {
        Ok(Self { flags: Buffer::zeroed(device, 4 * RANKS)?, lost: Buffer::zeroed(device, 4)? })
    }

    /// Waits for the device. Returns a rank that did not come to a rendezvous in time, if there is
    /// one; the results since are undefined then.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    pub fn lost(&self) -> Result<Option<usize>> {
        let mut lost = [0u32];
        self.lost.read(0, &mut lost)?;
        Ok((lost[0] > 0).then(|| lost[0] as usize - 1))
    }
}

/// One rendezvous of a step.
#[derive(Clone, Copy, Debug)]
pub struct Meeting<'a> {
    /// Flags of each rank, in the order of the ranks.
    pub flags: &'a [Arc<Flags>],
    /// This rank.
    pub rank: usize,
    /// Number of the step, the same on all ranks.
    pub step: Count<'a>,
    /// Number of the rendezvous in the step, and how many a step has.
    pub number: [u32; 2],
    /// Time limit of waiting for another rank.
    pub limit: Duration,
}

impl Meeting<'_> {
    /// Enqueues the rendezvous: work after it sees what the other ranks wrote before theirs.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    ///
    /// # Panics
    ///
    /// Panics if there are too many ranks.
    pub fn meet(&self) -> Result<()> {
        assert!(self.flags.len() <= RANKS, "as many ranks as there are flags");
        let own = &self.flags[self.rank];
        let mut args = MeetArgs {
            step: self.step.of(1),
            lost: own.lost.place(0, 4),
            limit_nanoseconds: u64::try_from(self.limit.as_nanos()).unwrap_or(u64::MAX),
            rank: self.rank as u32,
            ranks: self.flags.len() as u32,
            number: self.number[0],
            in_step: self.number[1],
            ..MeetArgs::default()
        };
        for (to, flags) in args.flags.iter_mut().zip(self.flags) {
            *to = flags.flags.place(0, 4 * RANKS);
        }
        // SAFETY: each rank has a flag for each of them.
        unsafe { own.flags.device().launch(&args.launch("meet", [1, 1], 32)) }
    }
}
