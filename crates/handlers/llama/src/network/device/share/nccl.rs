//! Ranks that have a GPU each, and NCCL between them.
//!
//! NCCL's kernels wait for each other without an end. So the ranks meet on the processor before a
//! step has any, and at its end a rank waits for its device with an eye on the clock and on the others.
//! In between a driver that takes no more work until some is done is not looked at, nor is NCCL itself
//! when it sets up: that they take too long is seen from outside.

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
use crate::LoadError;
use crate::comm::{Lost, Member, Waiting};
use crate::network::part::Part;

/// Between two looks at a device that computes.
const LOOK: Duration = Duration::from_micros(20);

/// One rank's side.
pub(in crate::network) struct Nccl {
    member: Member<Handed>,
    part: Part,
    device: CudaDevice,
    /// From the first step on, and until something ends it.
    group: Option<Group>,
}

/// A communicator.
struct Group(Comm);

// SAFETY: NCCL lets any thread use a communicator, one at a time, and its rank alone has this one:
// what is asked of it, it asks in a step, which borrows it.
unsafe impl Send for Group {}

// SAFETY: as above; candle asks for it where an operation is lent for one call.
unsafe impl Sync for Group {}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl").field("part", &self.part).finish_non_exhaustive()
    }
}

impl Nccl {
    pub(super) fn new(
        member: Member<Handed>,
        part: Part,
        device: &Device,
    ) -> Result<Self, LoadError> {
        let device = device.as_cuda_device().map_err(|error| {
            LoadError::Worker(format!("NCCL is for GPUs: {}", first_line(&error)))
        })?;
        Ok(Self { member, part, device: device.clone(), group: None })
    }

    /// Waits for the ranks, so that none begins what another will never join.
    pub(super) fn begin(&mut self) -> Result<()> {
        let opens = self.group.is_none();
        let mut own = if opens && self.part.rank == 0 { Some(new_id()?) } else { None };
        let id = self.member.meet(&mut own, |all, _| all[0].clone())?;
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

    /// Ends it for all: what NCCL's kernels wait for will not come.
    pub(super) fn end(&mut self, what: &str) -> Lost {
        let lost = self.member.end(what);
        // Dropped, it is aborted.
        self.group = None;
        lost
    }

    fn group(&self) -> Result<&Group> {
        self.group.as_ref().ok_or_else(|| message("the ranks have not met"))
    }

    /// Waits for the device, as long as there is somebody to wait for.
    pub(super) fn finish(&mut self) -> Result<()> {
        let event = self.device.cuda_stream().record_event(None).w()?;
        let mut waiting = Waiting::new(self.member.patience());
        while !event.try_is_complete().w()? {
            if let Err(lost) = self.member.is_over() {
                self.group = None;
                return Err(Failed::Lost(lost));
            }
            waiting.look();
            if waiting.is_long() {
                let seconds = self.member.patience().as_secs_f64();
                let what = format!("got nothing from the others within {seconds} s");
                return Err(Failed::Lost(self.end(&what)));
            }
            thread::sleep(LOOK);
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

/// The sums over all ranks.
struct Sum<'a>(&'a Group);

/// What each of so many ranks has, one behind the other.
struct Gather<'a>(&'a Group, usize);

/// What NCCL does with memory of a device.
trait Collective: Send + Sync {
    const NAME: &'static str;

    /// How many numbers come of so many.
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

/// An operation of candle's.
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
        // SAFETY: NCCL writes all of it before anything else on the stream reads it.
        let mut all = unsafe { device.alloc::<T>(self.0.size(to - from)) }?;
        self.0.run(&own.as_cuda_slice::<T>()?.slice(from..to), &mut all)?;
        Ok(CudaStorage::wrap_cuda_slice(all, device.clone()))
    }
}
