//! Network of two layers: `relu(x W1 + b1) W2 + b2`.

use nsbridge::checkpoint::{Checkpoint, Order, Weights};
use nsbridge::{Error, Result};

use crate::Config;

/// Weights of the network. Each matrix has one row per input.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// First matrix, `[buckets, hidden]`.
    pub first: Vec<f32>,
    /// First bias, `[hidden]`.
    pub first_bias: Vec<f32>,
    /// Second matrix, `[hidden, labels]`.
    pub second: Vec<f32>,
    /// Second bias, `[labels]`.
    pub second_bias: Vec<f32>,
}

impl Network {
    /// Reads the four tensors.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tensor if it is missing or its shape does not match the
    /// configuration, or an error if a size in the configuration is zero.
    pub fn load(checkpoint: &Checkpoint, config: &Config) -> Result<Self> {
        let Config { buckets, hidden, labels } = config;
        let (buckets, hidden, labels) = (*buckets, *hidden, labels.len());
        if buckets == 0 || hidden == 0 || labels == 0 {
            let why = "config.json must have at least one of `buckets`, `hidden` and `labels` each";
            return Err(Error::fatal(why));
        }
        let weights = checkpoint.load(&Order::everything())?;
        Ok(Self {
            first: tensor(&weights, "first.weight", &[buckets, hidden])?,
            first_bias: tensor(&weights, "first.bias", &[hidden])?,
            second: tensor(&weights, "second.weight", &[hidden, labels])?,
            second_bias: tensor(&weights, "second.bias", &[labels])?,
        })
    }

    /// Returns the logits of a batch, `[rows, labels]`. A row's logits do not depend on other rows.
    pub fn forward(&self, rows: &[Vec<f32>]) -> Vec<f32> {
        let hidden = self.hidden(&rows.concat());
        product(&hidden, &self.second, &self.second_bias)
    }

    /// Returns the hidden layer, `[rows, hidden]`, of the input `[rows, buckets]`.
    pub fn hidden(&self, rows: &[f32]) -> Vec<f32> {
        let mut hidden = product(rows, &self.first, &self.first_bias);
        hidden.iter_mut().for_each(|x| *x = x.max(0.0));
        hidden
    }
}

fn tensor(weights: &Weights, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let tensor = weights.tensor(name)?;
    if tensor.shape() != shape {
        let found = tensor.shape();
        let why = format!("the tensor {name} has the shape {found:?}; config.json says {shape:?}");
        return Err(Error::fatal(why));
    }
    tensor.into_vec()
}

/// Returns `x W + b` for `x` `[rows, inputs]` and `W` `[inputs, outputs]`.
///
/// Each row of `W` is read once for the whole batch, which is the point of batching. Each element
/// of the result is a sum over the inputs in their order, so it is the same for any number of rows.
/// Inputs of zero, which most are, are skipped because they add nothing.
fn product(x: &[f32], w: &[f32], bias: &[f32]) -> Vec<f32> {
    let (outputs, inputs) = (bias.len(), w.len() / bias.len());
    let rows = x.len() / inputs;
    let mut y = bias.repeat(rows);
    for (i, weights) in w.chunks_exact(outputs).enumerate() {
        for (row, sums) in y.chunks_exact_mut(outputs).enumerate() {
            let x = x[row * inputs + i];
            if x != 0.0 {
                sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
            }
        }
    }
    y
}
