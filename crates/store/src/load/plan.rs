//! Plan of a load: the chunks that hold the extents, in the order of need.

use std::collections::HashMap;
use std::ops::Range;

use nsbridge_handler::source::Extent;

use crate::contents::Cut;

/// Extents and chunks of a load.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) extents: Vec<PlannedExtent>,
    /// Chunks in the order in which they are needed.
    pub(crate) chunks: Vec<PlannedChunk>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlannedExtent {
    pub(crate) len: u64,
    pub(crate) align: usize,
    /// Offsets within the extent where it crosses into the next chunk.
    pub(crate) cuts: Vec<usize>,
    /// Chunks that the extent spans, as indices into `Plan::chunks`.
    pub(crate) chunks: Vec<usize>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlannedChunk {
    pub(crate) file: usize,
    pub(crate) number: u64,
    /// Range of the file that is read.
    pub(crate) range: Range<u64>,
    /// Destinations of the bytes, from the start of the range to its end.
    pub(crate) stretches: Vec<Stretch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stretch {
    /// Number of bytes that no extent needs.
    Skip(u64),
    /// Part of an extent. A chunk holds at most one part of each extent.
    Extent { extent: usize, part: usize },
}

/// Part of an extent within one chunk, by its range in the file.
struct Part {
    range: Range<u64>,
    extent: usize,
    part: usize,
}

impl Plan {
    /// Plans a load of these extents.
    ///
    /// # Errors
    ///
    /// Returns an error if two extents overlap.
    pub(crate) fn new(extents: &[Extent], cut: impl Fn(usize) -> Cut) -> Result<Self, String> {
        let mut places: HashMap<(usize, u64), usize> = HashMap::new();
        let mut parts: Vec<((usize, u64), Vec<Part>)> = Vec::new();
        let mut planned = Vec::with_capacity(extents.len());
        for (index, Extent { file, range, align, .. }) in extents.iter().enumerate() {
            let chunk = cut(*file).chunk;
            let numbers = range.start / chunk..range.end.div_ceil(chunk);
            let numbers = if range.is_empty() { 0..0 } else { numbers };
            let mut chunks = Vec::new();
            let mut cuts = Vec::new();
            for (part, number) in numbers.enumerate() {
                let (start, end) = (number * chunk, (number + 1) * chunk);
                let range = range.start.max(start)..range.end.min(end);
                if part > 0 {
                    cuts.push((range.start - extents[index].range.start) as usize);
                }
                let place = *places.entry((*file, number)).or_insert_with(|| {
                    parts.push(((*file, number), Vec::new()));
                    parts.len() - 1
                });
                parts[place].1.push(Part { range, extent: index, part });
                chunks.push(place);
            }
            let len = range.end - range.start;
            planned.push(PlannedExtent { len, align: *align, cuts, chunks });
        }
        let chunk = |((file, number), parts)| plan_chunk(file, number, parts, cut(file));
        let chunks = parts.into_iter().map(chunk).collect::<Result<_, _>>()?;
        Ok(Self { extents: planned, chunks })
    }
}

fn plan_chunk(
    file: usize,
    number: u64,
    mut parts: Vec<Part>,
    cut: Cut,
) -> Result<PlannedChunk, String> {
    parts.sort_by_key(|part| part.range.start);
    let wanted = parts.first().map_or(0, |part| part.range.start)
        ..parts.last().map_or(0, |part| part.range.end);
    let start = number * cut.chunk;
    let range = if cut.whole { start..cut.size.min(start + cut.chunk) } else { wanted };
    let mut stretches = Vec::new();
    let mut at = range.start;
    for Part { range, extent, part } in parts {
        let gap = range.start.checked_sub(at).ok_or("two tensors share bytes")?;
        if gap > 0 {
            stretches.push(Stretch::Skip(gap));
        }
        stretches.push(Stretch::Extent { extent, part });
        at = range.end;
    }
    if at < range.end {
        stretches.push(Stretch::Skip(range.end - at));
    }
    Ok(PlannedChunk { file, number, range, stretches })
}

#[cfg(test)]
mod tests;
