//! Sliding attention windows of the layers.

use super::{File, Setting};
use crate::config::family::Family;
use crate::config::refused;
use crate::error::LoadError;

/// Defaults in transformers: the window of Mistral and both Qwens, and the number of full-attention
/// layers of both Qwens.
const DEFAULT_WINDOW: usize = 4096;
const DEFAULT_FULL_LAYERS: usize = 28;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

impl File {
    /// Returns the window of each layer, as the family's class in transformers decides it.
    ///
    /// Llama has none, whatever the file says. In Mistral `sliding_window` applies to every layer.
    /// In the Qwens `use_sliding_window` enables it, and `layer_types` selects the layers; without
    /// that, all layers from `max_window_layers` on have the window.
    pub(in crate::config) fn windows(
        &self,
        family: Family,
    ) -> Result<Vec<Option<usize>>, LoadError> {
        let window = self.window(family);
        if window == Some(0) {
            return refused("sliding_window", 0, "null, or one or more");
        }
        let types = self.layer_types.as_deref();
        if let Some(types) = types {
            self.refuse_strange_layer_types(family, types, window)?;
        }
        let first = match family {
            Family::Llama | Family::Mistral => 0,
            Family::Qwen2 | Family::Qwen3 => self.max_window_layers.unwrap_or(DEFAULT_FULL_LAYERS),
        };
        let slides = |layer: usize| types.map_or(layer >= first, |types| types[layer] == SLIDING);
        // A larger number of layers is refused later. The cap keeps it from allocating memory here.
        let layers = 0..self.num_hidden_layers.min(crate::config::MAX_LAYERS);
        Ok(layers.map(|layer| window.filter(|_| slides(layer))).collect())
    }

    fn window(&self, family: Family) -> Option<usize> {
        let applies = match family {
            Family::Llama => false,
            Family::Mistral => true,
            Family::Qwen2 | Family::Qwen3 => self.use_sliding_window,
        };
        let window = match self.sliding_window {
            Setting::Absent => Some(DEFAULT_WINDOW),
            Setting::Null => None,
            Setting::Is(window) => Some(window),
        };
        window.filter(|_| applies)
    }

    fn refuse_strange_layer_types(
        &self,
        family: Family,
        types: &[String],
        window: Option<usize>,
    ) -> Result<(), LoadError> {
        if types.len() != self.num_hidden_layers {
            return refused("layer_types", format!("{} long", types.len()), "one for each layer");
        }
        let supported: &[&str] = match (family, window) {
            (Family::Mistral, Some(_)) => &[SLIDING],
            (Family::Qwen2 | Family::Qwen3, Some(_)) => &[FULL, SLIDING],
            (_, None) | (Family::Llama, _) => &[FULL],
        };
        match types.iter().find(|kind| !supported.contains(&kind.as_str())) {
            Some(kind) => {
                let with = if window.is_some() { "with" } else { "without" };
                let supported = format!("{} {with} a sliding window", supported.join(" or "));
                refused("layer_types", kind, &supported)
            }
            None => Ok(()),
        }
    }
}
