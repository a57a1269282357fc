//! Prompts as token ids, by the server's own chat template and tokenizer.
//!
//! A prompt of ids continues in the next attempt, and no parser of the server takes reasoning or calls
//! out of the text of its reply.

use nsbridge_handler::{Error, NO_ROOM, Result, TextInput};
use serde_json::{Map, Value, json};

use crate::answer::{refusal, unanswered};
use crate::options::Flavor;
use crate::server::Server;
use crate::texts::{MOST_OPEN, Texts, is_cut, tokens_of};

/// Returns the prompt's tokens.
///
/// # Errors
///
/// Returns the server's refusal, or an error if the prompt leaves no room for a reply.
pub(crate) async fn tokens(server: &Server, texts: &Texts, input: &TextInput) -> Result<Vec<u32>> {
    let tokens = match &input.prompt {
        Some(prompt) => texts.tokens(prompt, true).await?,
        None if input.messages.is_empty() => {
            refuse_cut(texts, &input.prompt_token_ids).await?;
            input.prompt_token_ids.clone()
        }
        None => of_chat(server, texts, input).await?,
    };
    let least = usize::from(input.max_tokens != Some(0));
    match server.context {
        Some(context) if tokens.len() + least > context => Err(Error::bad_input(format!(
            "the prompt has {} tokens, which {NO_ROOM} of {context}",
            tokens.len()
        ))),
        _ => Ok(tokens),
    }
}

/// Refuses a prompt that ends in the middle of a character: a server may send its text once more.
async fn refuse_cut(texts: &Texts, tokens: &[u32]) -> Result<()> {
    let end = &tokens[tokens.len().saturating_sub(MOST_OPEN)..];
    match is_cut(&texts.decode(end).await?) {
        true => Err(Error::bad_input("`prompt_token_ids` ends in the middle of a character")),
        false => Ok(()),
    }
}

async fn of_chat(server: &Server, texts: &Texts, input: &TextInput) -> Result<Vec<u32>> {
    let mut body = chat(input);
    if server.flavor == Flavor::LlamaServer {
        let answer = ask(server, "/apply-template", &body.into()).await?;
        let prompt = answer.get("prompt").and_then(Value::as_str);
        let prompt =
            prompt.ok_or_else(|| Error::retry("llama-server returns no prompt of a chat"))?;
        return texts.tokens(prompt, true).await;
    }
    body.insert("model".to_owned(), json!(server.model));
    // The template has the model's start token.
    body.insert("add_special_tokens".to_owned(), json!(false));
    tokens_of(&ask(server, "/tokenize", &body.into()).await?)
}

/// Returns the fields of a chat template.
pub(crate) fn chat(input: &TextInput) -> Map<String, Value> {
    let turn = input.add_generation_prompt.unwrap_or(!input.continue_final_message);
    let mut body = Map::new();
    let mut add = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
    add("messages", json!(input.messages));
    add("add_generation_prompt", json!(turn));
    add("continue_final_message", json!(input.continue_final_message));
    if !input.tools.is_empty() {
        add("tools", json!(input.tools));
    }
    let mut variables = input.chat_template_kwargs.clone();
    if let Some(effort) = &input.reasoning_effort {
        variables.insert("reasoning_effort".to_owned(), json!(effort));
    }
    if !variables.is_empty() {
        add("chat_template_kwargs", variables.into());
    }
    body
}

async fn ask(server: &Server, path: &str, body: &Value) -> Result<Value> {
    let answer = server.http.call(path, body).await.map_err(unanswered)?;
    match answer {
        Ok(answer) => Ok(answer),
        Err(answer) => Err(refusal(&answer, &server.http, &server.model).await),
    }
}
