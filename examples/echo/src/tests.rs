//! The example keeps the contract it shows.

use nsbridge_handler::testing::check;
use serde_json::json;

use super::Echo;

#[test]
fn echo_is_a_handler_by_the_book() {
    check(Echo, &json!("the bear went down to the sea")).unwrap();
}
