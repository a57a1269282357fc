//! Text features: counts of short letter n-grams.

/// Maximum n-gram length in characters.
const MAX_GRAM_CHARS: usize = 4;

/// Converts a text to a vector of `buckets` numbers with Euclidean norm 1: the square roots of the
/// counts of all n-grams of one to four letters, hashed into buckets. Returns `None` if the text
/// has no letters.
///
/// Each word is extended by a mark on both sides, so that prefixes and suffixes have n-grams of
/// their own. The hash is FNV-1a (Fowler, Noll, Vo; RFC 9923) in 64 bits.
pub fn grams(text: &str, buckets: usize) -> Option<Vec<f32>> {
    let mut row = vec![0.0_f32; buckets];
    let text = text.to_lowercase();
    for word in text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()) {
        let letters: Vec<char> = std::iter::once('_').chain(word.chars()).chain(['_']).collect();
        for long in 1..=MAX_GRAM_CHARS {
            letters.windows(long).for_each(|run| row[hash(run) as usize % buckets] += 1.0);
        }
    }
    row.iter_mut().for_each(|count| *count = count.sqrt());
    let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
    (length > 0.0).then(|| row.into_iter().map(|x| x / length).collect())
}

/// Returns the hash of characters.
pub(crate) fn hash(letters: &[char]) -> u64 {
    let bytes = letters.iter().flat_map(|letter| u32::from(*letter).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
