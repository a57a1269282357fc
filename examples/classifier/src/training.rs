//! Training of the network: gradients by hand, Adam, and the files of a model.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use safetensors::tensor::{Dtype, TensorView, serialize};

use crate::Config;
use crate::network::Network;

/// Learning rate and weight decay of Adam (Kingma and Ba, arXiv 1412.6980) with decoupled weight
/// decay (Loshchilov and Hutter, arXiv 1711.05101).
const RATE: f32 = 3e-3;
const DECAY: f32 = 1e-2;

/// Input row and the index of its label.
pub type Example = (Vec<f32>, usize);

/// Network in training.
#[derive(Debug)]
pub struct Training {
    /// Network so far.
    pub network: Network,
    adam: [Adam; 4],
    /// Number of the next step, from 1.
    step: usize,
    steps: usize,
}

impl Training {
    /// Creates a network with random weights, for a training of this many steps.
    pub fn begin(config: &Config, steps: usize, random: &mut Random) -> Self {
        let adam = [0; 4].map(|_| Adam::default());
        Self { network: begin(config, random), adam, step: 1, steps }
    }

    /// Takes one step and returns the mean cross entropy of the batch before it.
    pub fn step(&mut self, batch: &[Example]) -> f32 {
        let (loss, gradient) = gradient(&self.network, batch);
        let rate = RATE * (1.0 - self.step as f32 / self.steps as f32);
        let weights = parts(&mut self.network).into_iter().zip(gradient);
        for ((weights, gradient), adam) in weights.zip(&mut self.adam) {
            adam.step(weights, &gradient, rate, self.step);
        }
        self.step += 1;
        loss
    }
}

/// Creates a network with zero biases and weights as in He et al. (arXiv 1502.01852).
fn begin(config: &Config, random: &mut Random) -> Network {
    let mut weights = |inputs: usize, outputs: usize| {
        let spread = (6.0 / inputs as f32).sqrt();
        (0..inputs * outputs).map(|_| spread * (2.0 * random.unit() - 1.0)).collect()
    };
    let labels = config.labels.len();
    Network {
        first: weights(config.buckets, config.hidden),
        first_bias: vec![0.0; config.hidden],
        second: weights(config.hidden, labels),
        second_bias: vec![0.0; labels],
    }
}

fn parts(network: &mut Network) -> [&mut Vec<f32>; 4] {
    let Network { first, first_bias, second, second_bias } = network;
    [first, first_bias, second, second_bias]
}

/// Returns the mean cross entropy of a batch and its gradient in the order of [`parts`].
fn gradient(network: &Network, batch: &[Example]) -> (f32, [Vec<f32>; 4]) {
    let Network { first, first_bias, second, second_bias } = network;
    let (width, labels) = (first_bias.len(), second_bias.len());
    let rows: Vec<Vec<f32>> = batch.iter().map(|(row, _)| row.clone()).collect();
    let (hidden, logits) = (network.hidden(&rows.concat()), network.forward(&rows));
    let mut sums = [first, first_bias, second, second_bias].map(|part| vec![0.0; part.len()]);
    let [by_first, by_first_bias, by_second, by_second_bias] = &mut sums;
    let mut loss = 0.0;
    for (at, (row, label)) in batch.iter().enumerate() {
        let logits = &logits[at * labels..][..labels];
        let hidden = &hidden[at * width..][..width];
        let most = logits.iter().fold(f32::MIN, |most, x| most.max(*x));
        let sum: f32 = logits.iter().map(|x| (x - most).exp()).sum();
        loss -= (logits[*label] - most - sum.ln()) / batch.len() as f32;
        let by_logits: Vec<f32> = (0..labels)
            .map(|i| (logits[i] - most).exp() / sum - if i == *label { 1.0 } else { 0.0 })
            .map(|by| by / batch.len() as f32)
            .collect();
        add(by_second_bias, &by_logits, 1.0);
        for (j, x) in hidden.iter().enumerate() {
            add(&mut by_second[j * labels..][..labels], &by_logits, *x);
        }
        let by_hidden: Vec<f32> = (0..width)
            .map(|j| {
                let weights = &second[j * labels..][..labels];
                let by: f32 = weights.iter().zip(&by_logits).map(|(w, by)| w * by).sum();
                if hidden[j] > 0.0 { by } else { 0.0 }
            })
            .collect();
        add(by_first_bias, &by_hidden, 1.0);
        for (i, x) in row.iter().enumerate().filter(|(_, x)| **x != 0.0) {
            add(&mut by_first[i * width..][..width], &by_hidden, *x);
        }
    }
    (loss, sums)
}

fn add(sums: &mut [f32], numbers: &[f32], times: f32) {
    sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += times * number);
}

#[derive(Debug, Default)]
struct Adam {
    mean: Vec<f32>,
    square: Vec<f32>,
}

impl Adam {
    fn step(&mut self, weights: &mut [f32], gradient: &[f32], rate: f32, step: usize) {
        let (keep_mean, keep_square) = (0.9_f32, 0.999_f32);
        self.mean.resize(weights.len(), 0.0);
        self.square.resize(weights.len(), 0.0);
        let (mean_due, square_due) =
            (1.0 - keep_mean.powi(step as i32), 1.0 - keep_square.powi(step as i32));
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((weight, by), (mean, square)) in weights.iter_mut().zip(gradient).zip(moments) {
            *mean += (1.0 - keep_mean) * (by - *mean);
            *square += (1.0 - keep_square) * (by * by - *square);
            let by = (*mean / mean_due) / ((*square / square_due).sqrt() + 1e-8);
            *weight -= rate * (by + DECAY * *weight);
        }
    }
}

/// Writes the files of a model.
///
/// # Errors
///
/// Returns an error if a file cannot be written.
pub fn write(network: &Network, config: &Config, folder: &Path) -> Result<()> {
    let (buckets, hidden, labels) = (config.buckets, config.hidden, config.labels.len());
    let bytes = |part: &Vec<f32>| part.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let tensors = [
        ("first.weight", vec![buckets, hidden], bytes(&network.first)),
        ("first.bias", vec![hidden], bytes(&network.first_bias)),
        ("second.weight", vec![hidden, labels], bytes(&network.second)),
        ("second.bias", vec![labels], bytes(&network.second_bias)),
    ];
    let views: HashMap<_, _> = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((*name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<_>>()?;
    std::fs::write(folder.join("model.safetensors"), serialize(views, None)?)?;
    let config = serde_json::to_string_pretty(config)? + "\n";
    Ok(std::fs::write(folder.join("config.json"), config)?)
}

/// SplitMix64 generator (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`. The modulo bias is negligible here.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u64 << 24) as f32
    }
}
