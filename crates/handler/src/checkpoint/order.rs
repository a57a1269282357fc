//! Load order of tensors, and the number of ranks that read each.

use std::cmp::Ordering;

/// Selection of a checkpoint's tensors and the order to load them in.
///
/// Tensors are loaded ahead of their readers, as far as memory allows. The order should match the
/// order of the reads: a tensor with a waiting reader overtakes the others, but only one at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub(crate) ranks: usize,
    pub(crate) names: Option<Vec<String>>,
}

impl Default for Order {
    fn default() -> Self {
        Self::everything()
    }
}

impl Order {
    /// Selects all tensors in order of name, with numbers compared by value, embeddings first and
    /// output heads last. This is nearly the order in which models are built.
    pub fn everything() -> Self {
        Self { ranks: 1, names: None }
    }

    /// Selects these tensors only, in this order.
    pub fn of<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        Self { ranks: 1, names: Some(names.into_iter().map(Into::into).collect()) }
    }

    /// Sets the number of tensor-parallel ranks, each of which reads each tensor once. A tensor is
    /// kept until the last rank has read its part, so a rank that runs ahead of the others fills
    /// the memory.
    #[must_use]
    pub fn for_ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks.max(1);
        self
    }
}

/// Compares names in the order in which models use them: embeddings first, output heads last.
pub(crate) fn as_built(a: &str, b: &str) -> Ordering {
    let place = |name: &str| match name {
        _ if name.contains("embed_tokens") || name.starts_with("token_embd") => 0,
        _ if name.contains("lm_head") || name == "output.weight" => 2,
        _ => 1,
    };
    place(a).cmp(&place(b)).then_with(|| natural(a, b))
}

/// Compares names with the numbers in them by value.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (parts(a), parts(b));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return a.cmp(b),
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(x), Some(y)) => match compare(x, y) {
                Ordering::Equal => {}
                other => return other,
            },
        }
    }
}

fn compare(a: &str, b: &str) -> Ordering {
    let digits = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    if digits(a) && digits(b) {
        let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
        return a.len().cmp(&b.len()).then_with(|| a.cmp(b));
    }
    a.cmp(b)
}

/// Splits a name into runs of digits and the text between them.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let same = |c: char| c.is_ascii_digit() == first.is_ascii_digit();
        let end = rest.find(|c| !same(c)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::natural;

    #[test]
    fn a_model_is_read_as_it_is_built() {
        let mut names = ["lm_head.weight", "model.norm", "model.layers.1", "model.embed_tokens"];
        names.sort_by(|a, b| super::as_built(a, b));
        assert_eq!(names, ["model.embed_tokens", "model.layers.1", "model.norm", "lm_head.weight"]);
    }

    #[test]
    fn layers_are_ordered_by_their_number() {
        let mut names = ["b.10.x", "b.9.x", "b.09.x", "b.2", "b.2.x", "a", "b.layer"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["a", "b.2", "b.2.x", "b.09.x", "b.9.x", "b.10.x", "b.layer"]);
    }
}
