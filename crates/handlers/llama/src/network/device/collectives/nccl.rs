//! Ranks with one GPU each, connected by NCCL.
//!
//! NCCL's kernels wait for each other without a time limit. So the ranks meet on the CPU before a
//! step enqueues any, and at its end a rank polls its device with a time limit, and stops if
//! another rank is lost. Two things are not covered here: a driver that accepts no more work until
//! some is done, and NCCL's own setup. If they take too long, the watchdog notices from outside.

#![expect(unsafe_code, reason = "a communicator is a pointer, and new memory is not set")]

use std::fmt;
use std::thread;
use std::time::Duration;

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr};
use candle_core::cuda_backend::cudarc::nccl::safe::{Comm, Id, NcclType, ReduceOp};
use candle_core::cuda_backend::{CudaDType, CudaDevice, WrapErr as _};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Device, Layout, Result as Candle, Shape, Tensor,
};
use half::{bf16, f16};

use super::super::{Failed, Result, first_line};
use super::Handed;
use crate::error::LoadError;
use crate::network::part::Part;
use nsbridge_kernels::collectives::{Patience, RankHandle, RankLost};

/// Polling interval while a device computes.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// One rank's communicator.
pub(in crate::network) struct Nccl {
    handle: RankHandle<Handed>,
    part: Part,
    device: CudaDevice,
    /// Set from the first step on, until the group ends.
    group: Option<Group>,
}

/// NCCL communicator.
struct Group(Comm);

// SAFETY: NCCL allows a communicator to be used from any thread, one at a time. Only its rank has
// this one, and uses it in a step, which borrows the rank mutably.
unsafe impl Send for Group {}

// SAFETY: as above; candle requires it of an operation, which is borrowed for a single call.
unsafe impl Sync for Group {}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl").field("part", &self.part).finish_non_exhaustive()
    }
}

impl Nccl {
    pub(super) fn new(
        handle: RankHandle<Handed>,
        part: Part,
        device: &Device,
    ) -> Result<Self, LoadError> {
        let device = device.as_cuda_device().map_err(|error| {
            LoadError::Worker(format!("NCCL is for GPUs: {}", first_line(&error)))
        })?;
        Ok(Self { handle, part, device: device.clone(), group: None })
    }

    /// Waits for all ranks, so that none starts a collective that another never joins.
    pub(super) fn begin(&mut self) -> Result<()> {
        let opens = self.group.is_none();
        let mut own = if opens && self.part.rank == 0 { Some(new_id()?) } else { None };
        let id = self.handle.exchange(&mut own, |all, _| all[0].clone())?;
        if opens {
            let id = id.ok_or_else(|| message("there is no id for the ranks to meet by"))?;
            let id: Vec<u8> = id.to_vec1()?;
            let bytes: [u8; 128] = id.try_into().map_err(|_| message("an id has 128 bytes"))?;
            let id = Id::uninit(bytes.map(|byte| byte as _));
            let stream = self.device.cuda_stream();
            stream.context().bind_to_thread().w()?;
            let comm = Comm::from_rank(stream, self.part.rank, self.part.of, id);
            self.group = Some(Group(comm.map_err(failed)?));
        }
        Ok(())
    }

    pub(super) fn sum(&self, own: &Tensor) -> Result<Tensor> {
        let sums = own.contiguous()?.apply_op1_no_bwd(&Operation(Sum(self.group()?)))?;
        Ok(sums.reshape(own.shape())?)
    }

    pub(super) fn gather(&mut self, own: &Tensor) -> Result<Option<Tensor>> {
        let (rows, each) = own.dims2()?;
        let (first, of) = (self.part.rank == 0, self.part.of);
        let all = own.contiguous()?.apply_op1_no_bwd(&Operation(Gather(self.group()?, of)))?;
        self.finish()?;
        if !first {
            return Ok(None);
        }
        Ok(Some(all.reshape((of, rows, each))?.transpose(0, 1)?.reshape((rows, of * each))?))
    }

    /// Ends the group: NCCL's kernels would wait forever.
    pub(super) fn end(&mut self, what: &str) -> RankLost {
        let lost = self.handle.report_lost(what);
        // Dropping the communicator aborts its kernels.
        self.group = None;
        lost
    }

    fn group(&self) -> Result<&Group> {
        self.group.as_ref().ok_or_else(|| message("the ranks have not met"))
    }

    /// Waits for the device, until the time limit or until another rank is lost.
    pub(super) fn finish(&mut self) -> Result<()> {
        let event = self.device.cuda_stream().record_event(None).w()?;
        let mut waiting = Patience::new(self.handle.patience());
        while !event.try_is_complete().w()? {
            if let Err(lost) = self.handle.check() {
                self.group = None;
                return Err(Failed::Lost(lost));
            }
            waiting.poll();
            if waiting.is_over() {
                let seconds = self.handle.patience().as_secs_f64();
                let what = format!("got nothing from the others within {seconds} s");
                return Err(Failed::Lost(self.end(&what)));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

fn new_id() -> Result<Tensor> {
    let id = Id::new().map_err(failed)?;
    let bytes = id.internal().map(|byte| byte as u8);
    Ok(Tensor::new(bytes.as_slice(), &Device::Cpu)?)
}

fn failed(error: impl fmt::Debug) -> Failed {
    message(&format!("NCCL: {error:?}"))
}

fn message(what: &str) -> Failed {
    Failed::Device(candle_core::Error::Msg(what.to_owned()))
}

/// All-reduce by sum.
struct Sum<'a>(&'a Group);

/// All-gather over a number of ranks, one behind the other.
struct Gather<'a>(&'a Group, usize);

/// NCCL collective on device memory.
trait Collective: Send + Sync {
    const NAME: &'static str;

    /// Returns the output length for this input length.
    fn size(&self, numbers: usize) -> usize;

    fn run<T: NcclType + DeviceRepr>(
        &self,
        own: &impl DevicePtr<T>,
        all: &mut CudaSlice<T>,
    ) -> Candle<()>;
}

impl Collective for Sum<'_> {
    const NAME: &'static str = "all-reduce";

    fn size(&self, numbers: usize) -> usize {
        numbers
    }

    fn run<T: NcclType + DeviceRepr>(
        &self,
        own: &impl DevicePtr<T>,
        all: &mut CudaSlice<T>,
    ) -> Candle<()> {
        self.0.0.all_reduce(own, all, &ReduceOp::Sum).map(drop).map_err(refused)
    }
}

impl Collective for Gather<'_> {
    const NAME: &'static str = "all-gather";

    fn size(&self, numbers: usize) -> usize {
        numbers * self.1
    }

    fn run<T: NcclType + DeviceRepr>(
        &self,
        own: &impl DevicePtr<T>,
        all: &mut CudaSlice<T>,
    ) -> Candle<()> {
        self.0.0.all_gather(own, all).map(drop).map_err(refused)
    }
}

fn refused(error: impl fmt::Debug) -> candle_core::Error {
    candle_core::Error::Msg(format!("NCCL: {error:?}"))
}

/// Wraps a collective as a candle operation.
struct Operation<C>(C);

impl<C: Collective> CustomOp1 for Operation<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Candle<(CpuStorage, Shape)> {
        Err(candle_core::Error::Msg("NCCL is for GPUs".to_owned()))
    }

    fn cuda_fwd(&self, own: &CudaStorage, layout: &Layout) -> Candle<(CudaStorage, Shape)> {
        let all = match own.dtype() {
            DType::BF16 => self.put_together::<bf16>(own, layout),
            DType::F16 => self.put_together::<f16>(own, layout),
            _ => self.put_together::<f32>(own, layout),
        }?;
        Ok((all, Shape::from(self.0.size(layout.shape().elem_count()))))
    }
}

impl<C: Collective> Operation<C> {
    fn put_together<T: NcclType + CudaDType + DeviceRepr>(
        &self,
        own: &CudaStorage,
        layout: &Layout,
    ) -> Candle<CudaStorage> {
        let (from, to) = layout.contiguous_offsets().ok_or_else(|| refused("not contiguous"))?;
        let device = own.device();
        // SAFETY: NCCL writes the whole buffer before anything else on the stream reads it.
        let mut all = unsafe { device.alloc::<T>(self.0.size(to - from)) }?;
        self.0.run(&own.as_cuda_slice::<T>()?.slice(from..to), &mut all)?;
        Ok(CudaStorage::wrap_cuda_slice(all, device.clone()))
    }
}
