//! Tests of the example against the contract of a handler.

use std::sync::Arc;

use nsbridge::{Models, testing};
use serde_json::json;

use super::Echo;

#[test]
fn echo_is_a_handler_by_the_book() {
    let echo: Arc<Echo> = testing::load((), Models::default()).unwrap();
    testing::check(&echo, &json!("the bear went down to the sea")).unwrap();
}
