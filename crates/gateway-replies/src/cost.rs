//! Estimates of what a request takes of its caller's limits.

use nsbridge_client::{ChatMessage, Image, TextInput};

/// Estimate of the tokens that a model makes of an image.
const IMAGE_TOKENS: usize = 1024;

/// Returns an estimate of a prompt's tokens: a quarter of the bytes of its texts, and as many for each
/// image.
pub fn prompt_tokens(input: &TextInput) -> u64 {
    let images = || input.messages.iter().flat_map(|message| message.content.images());
    let texts = prompt_bytes(input) - images().map(Image::bytes).sum::<usize>();
    (texts / 4 + images().count() * IMAGE_TOKENS + input.prompt_token_ids.len() + 1) as u64
}

/// Returns the bytes of a prompt's texts and images.
pub(crate) fn prompt_bytes(input: &TextInput) -> usize {
    let messages: usize = input.messages.iter().map(ChatMessage::bytes).sum();
    messages + input.prompt.as_ref().map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use nsbridge_client::{ChatMessage, Image, TextInput};

    use super::{prompt_bytes, prompt_tokens};

    #[test]
    fn an_image_counts_as_tokens_and_not_by_its_bytes() {
        let mut message = ChatMessage::new("user", "a".repeat(396));
        let text = TextInput::chat([message.clone()]);
        assert_eq!((prompt_tokens(&text), prompt_bytes(&text)), (101, 400));
        message.content.push_image(Image::new(format!("data:{}", "A".repeat(1_000_000))));
        let with_image = TextInput::chat([message]);
        assert_eq!(prompt_tokens(&with_image), 101 + 1024);
        assert_eq!(prompt_bytes(&with_image), 400 + 1_000_005);
    }
}
