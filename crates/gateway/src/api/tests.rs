//! Tests that all interfaces have in common.

use nsbridge_client::{ChatMessage, Image, TextInput};
use nsbridge_gateway_access::Access;
use serde_json::{Value, json};

use super::chat::request::ChatRequest;
use super::completions::CompletionRequest;
use super::messages::request::MessagesRequest;
use super::responses::request::ResponsesRequest;
use crate::catalog::{Model, Models};
use crate::error::ApiError;

const PNG: &str = "iVBORw0KGgo=";

/// Parses a request to the model `m`, which has these settings.
fn input(interface: &str, model: &Model, body: &Value) -> Result<TextInput, ApiError> {
    let models = Models::new([("m".to_owned(), model.clone())].into(), None).unwrap();
    let caller = Access::open_to_all("t".parse().unwrap()).check(None, None).unwrap();
    let body = body.to_string().into_bytes();
    Ok(match interface {
        "completions" => CompletionRequest::parse(&body, &models, &caller)?.inputs.remove(0),
        "chat" => ChatRequest::parse(&body, &models, &caller)?.input,
        "messages" => MessagesRequest::parse(&body, &models, &caller)?.input,
        "responses" => ResponsesRequest::parse(&body, &models, &caller)?.input,
        _ => unreachable!(),
    })
}

/// Returns a request of an interface with an image between two texts.
fn with_image(interface: &str, address: &str) -> Value {
    let data = address.split(',').next_back();
    let content = match interface {
        "chat" => json!([{ "type": "text", "text": "a" },
                         { "type": "image_url", "image_url": { "url": address, "detail": "low" } },
                         { "type": "text", "text": "b" }]),
        "messages" if address.starts_with("data:") => json!([{ "type": "text", "text": "a" },
            { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": data } },
            { "type": "text", "text": "b" }]),
        "messages" => json!([{ "type": "image", "source": { "type": "url", "url": address } }]),
        _ => json!([{ "type": "input_text", "text": "a" },
                    { "type": "input_image", "image_url": address, "detail": "low" },
                    { "type": "input_text", "text": "b" }]),
    };
    let messages = json!([{ "role": "user", "content": "first" },
                          { "role": "assistant", "content": "yes" },
                          { "role": "user", "content": content }]);
    let field = if interface == "responses" { "input" } else { "messages" };
    json!({ "model": "m", "max_tokens": 1, field: messages })
}

fn body(interface: &str, address: &str) -> Value {
    let mut body = with_image(interface, address);
    if interface == "responses" {
        body.as_object_mut().unwrap().remove("max_tokens");
    }
    body
}

#[test]
fn images_reach_models_that_take_them_and_are_refused_by_their_place_for_others() {
    let url = format!("data:image/png;base64,{PNG}");
    let seeing = Model { images: true, ..Model::default() };
    for (interface, param) in [
        ("chat", "messages[2].content"),
        ("messages", "messages[2].content[1]"),
        ("responses", "input[2].content"),
    ] {
        let read = input(interface, &seeing, &body(interface, &url)).unwrap();
        let mut written = serde_json::to_value(&read.messages[2].content).unwrap();
        assert_eq!(written[1]["image_url"]["url"], url, "{interface}");
        written[1].take();
        let text = |text: &str| json!({ "type": "text", "text": text });
        assert_eq!(written, json!([text("a"), null, text("b")]), "{interface}");
        let error = input(interface, &Model::default(), &body(interface, &url)).unwrap_err();
        assert_eq!(error.json()["error"]["param"], param, "{interface}: {error}");
        // No worker fetches what a client names.
        let away = body(interface, "http://169.254.169.254/latest/meta-data");
        let error = input(interface, &seeing, &away).unwrap_err();
        assert!(error.message().contains("must be a data URL"), "{interface}: {error}");
    }
}

#[test]
fn the_result_of_a_tool_may_be_an_image() {
    let seeing = Model { images: true, ..Model::default() };
    let source = json!({ "type": "base64", "media_type": "image/png", "data": PNG });
    let content = json!([{ "type": "image", "source": source }]);
    let result = json!({ "type": "tool_result", "tool_use_id": "t", "is_error": true,
                         "content": content });
    let chat = json!([{ "role": "user", "content": [result] }]);
    let body = json!({ "model": "m", "max_tokens": 1, "messages": chat });
    let read = input("messages", &seeing, &body).unwrap();
    assert_eq!(&*read.messages[0].content, "Error: ");
    assert_eq!(read.messages[0].content.images().len(), 1);
    assert!(input("messages", &Model::default(), &body).is_err());
}

#[test]
fn images_of_an_earlier_response_are_refused_too() {
    let follow = |images: bool| {
        let model = Model { images, ..Model::default() };
        let models = Models::new([("m".to_owned(), model)].into(), None).unwrap();
        let caller = Access::open_to_all("t".parse().unwrap()).check(None, None).unwrap();
        let body = json!({ "model": "m", "input": "And now?" }).to_string();
        let mut request = ResponsesRequest::parse(body.as_bytes(), &models, &caller).unwrap();
        let mut message = ChatMessage::new("user", "a");
        message.content.push_image(Image::new(format!("data:image/png;base64,{PNG}")));
        request.follow(vec![message]).map(|()| request.input.messages.len())
    };
    assert_eq!(follow(true).unwrap(), 2);
    let error = follow(false).unwrap_err();
    assert_eq!(error.json()["error"]["param"], "previous_response_id");
}

#[test]
fn the_models_adapter_is_that_of_every_request() {
    let adapted = Model { adapter: Some("sql".to_owned()), ..Model::default() };
    for (interface, field, value) in [
        ("completions", "prompt", json!("a")),
        ("chat", "messages", json!([{ "role": "user", "content": "a" }])),
        ("messages", "messages", json!([{ "role": "user", "content": "a" }])),
        ("responses", "input", json!("a")),
    ] {
        let mut body = json!({ "model": "m", field: value });
        if interface == "messages" {
            body["max_tokens"] = 1.into();
        }
        let read = input(interface, &adapted, &body).unwrap();
        assert_eq!(read.adapter.as_deref(), Some("sql"), "{interface}");
        assert_eq!(input(interface, &Model::default(), &body).unwrap().adapter, None);
        // The choice of an adapter is that of the model's name.
        body["adapter"] = "other".into();
        assert!(input(interface, &adapted, &body).is_err(), "{interface}");
    }
}
