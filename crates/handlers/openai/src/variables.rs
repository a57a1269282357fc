//! Variables of chat templates that a request sets.

use nsbridge_handler::{Error, Result, TextInput};

/// Arguments of chat templates and their functions that a request cannot set.
const OWN_VARIABLES: [&str; 29] = [
    "add_generation_prompt",
    "add_special_tokens",
    "bos_token",
    "chat_template",
    "cls_token",
    "continue_final_message",
    "conversation",
    "documents",
    "eos_token",
    "mask_token",
    "max_length",
    "messages",
    "namespace",
    "pad_token",
    "padding",
    "raise_exception",
    "range",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "self",
    "sep_token",
    "strftime_now",
    "tokenize",
    "tokenizer",
    "tokenizer_kwargs",
    "tools",
    "truncation",
    "unk_token",
];

/// Refuses a variable that only the server sets.
///
/// # Errors
///
/// Returns an error that names the variable.
pub(crate) fn refuse_own_variables(input: &TextInput) -> Result<()> {
    let own = |name: &&String| OWN_VARIABLES.contains(&name.as_str());
    match input.chat_template_kwargs.keys().find(own) {
        Some(name) => Err(Error::bad_input(format!(
            "`chat_template_kwargs` must not set `{name}`, which the server sets"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use nsbridge_handler::{ChatMessage, TextInput};

    use super::{OWN_VARIABLES, refuse_own_variables};

    #[test]
    fn a_variable_of_the_server_is_refused_by_its_name() {
        let mut input = TextInput::chat([ChatMessage::new("user", "a")]);
        let refused =
            |input: &TextInput| refuse_own_variables(input).err().map(|why| why.to_string());
        input.chat_template_kwargs.insert("enable_thinking".to_owned(), false.into());
        assert_eq!(refused(&input), None);
        for name in ["messages", "tools", "chat_template", "tokenize", "documents", "bos_token"] {
            assert!(OWN_VARIABLES.contains(&name), "{name}");
        }
        for name in OWN_VARIABLES {
            let mut input = input.clone();
            input.chat_template_kwargs.insert(name.to_owned(), 1.into());
            let says =
                format!("`chat_template_kwargs` must not set `{name}`, which the server sets");
            assert_eq!(refused(&input), Some(says));
        }
    }
}
