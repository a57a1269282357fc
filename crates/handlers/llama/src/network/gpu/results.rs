//! Results of a step: tokens that the device samples, or rows of numbers.

use nsbridge_gpu::sample::Sampler;

use super::{Failed, GpuShard, Result};
use crate::network::plan::Step;
use crate::sample::{Chosen, Draws};

impl GpuShard {
    /// Samples the tokens of a step and copies them to the host, or all its results.
    pub(super) fn take_results(&mut self, step: &Step, wanted: usize) -> Result<()> {
        if let Some(flags) = self.flags.get(self.part.rank)
            && let Some(rank) = flags.lost()?
        {
            let seconds = self.handle.patience().as_secs_f64();
            let why = format!("waited in vain for rank {rank}, for {seconds} s");
            return Err(Failed::Lost(self.handle.report_lost(&why)));
        }
        self.chosen = None;
        if self.part.rank > 0 {
            return Ok(());
        }
        if let Some(draws) = &step.draws {
            self.chosen = Some(self.sample(draws)?);
            return Ok(());
        }
        self.logits.resize(wanted * self.row(), 0.0);
        if self.hidden {
            let floats = self.buffers.normed.floats();
            let normed = floats.ok_or_else(|| no_form("the last norm"))?;
            normed.read(0, &mut self.logits)?;
        } else {
            self.out.read(0, &mut self.logits)?;
        }
        Ok(())
    }

    /// Samples tokens from the logits on the device.
    fn sample(&mut self, draws: &Draws) -> Result<Chosen> {
        let batch = draws.batch();
        let room = self.sampler.as_ref().map_or(0, Sampler::most);
        if batch.len() > room {
            let most = batch.len().max(8).next_power_of_two();
            self.sampler = Some(Sampler::new(&self.device, batch.vocab(), most)?);
        }
        let row = self.row();
        let Some(sampler) = self.sampler.as_mut().filter(|_| !batch.is_empty()) else {
            return Ok(Chosen::default());
        };
        sampler.sample((&self.out, row), batch)?;
        let choices = sampler.choices(batch.len())?;
        let found = sampler.likeliest((&self.out, row), draws.tops())?;
        Ok(draws.chosen(&choices, found))
    }

    /// Returns the distance of the rows of results.
    pub(super) fn row(&self) -> usize {
        if self.hidden { self.widths.hidden } else { self.tokens.each * self.part.of }
    }
}

fn no_form(what: &str) -> Failed {
    Failed::Device(nsbridge_gpu::Error::new(format!("{what} has no numbers in f32")))
}
