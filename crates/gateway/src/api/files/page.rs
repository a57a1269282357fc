//! Pages of a list.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};

/// Query of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Page {
    after: Option<String>,
    limit: Option<usize>,
    order: Option<String>,
    purpose: Option<String>,
}

/// Items of a page by their names.
pub(crate) struct Listed<T> {
    items: Vec<(String, T)>,
    has_more: bool,
}

/// Reads the query of a list.
///
/// # Errors
///
/// Returns an error if a parameter has another type.
pub(crate) fn page(query: Result<Query<Page>, QueryRejection>) -> Result<Page> {
    let refused = |_| ApiError::bad_request("the query is invalid: `limit` must be a number, once");
    query.map(|Query(page)| page).map_err(refused)
}

impl Page {
    /// Returns true if the newest item comes first, which is the default.
    ///
    /// # Errors
    ///
    /// Returns an error if the order is none of the two.
    pub(crate) fn newest_first(&self) -> Result<bool> {
        match self.order.as_deref() {
            None | Some("desc") => Ok(true),
            Some("asc") => Ok(false),
            Some(_) => Err(ApiError::field("order", "`order` must be `asc` or `desc`")),
        }
    }

    pub(crate) fn purpose(&self) -> Option<&str> {
        self.purpose.as_deref()
    }

    /// Cuts the page out of all items.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is out of range, or if no item has the name to start after.
    pub(crate) fn of<T>(
        &self,
        items: impl Iterator<Item = (String, T)>,
        default: usize,
        most: usize,
    ) -> Result<Listed<T>> {
        let limit = self.limit.unwrap_or(default);
        if !(1..=most).contains(&limit) {
            return Err(ApiError::field("limit", format!("`limit` must be from 1 to {most}")));
        }
        let mut items = items.peekable();
        if let Some(after) = &self.after
            && !items.by_ref().any(|(name, _)| name == *after)
        {
            return Err(ApiError::field("after", "`after` must be an id of this list"));
        }
        let items_of_page = items.by_ref().take(limit).collect();
        Ok(Listed { items: items_of_page, has_more: items.next().is_some() })
    }
}

impl<T> Listed<T> {
    /// Returns the page as clients see it.
    pub(crate) fn json(&self, shown: impl Fn(&T) -> Value) -> Value {
        let edge = |item: Option<&(String, T)>| item.map(|(name, _)| name.clone());
        let data: Vec<Value> = self.items.iter().map(|(_, item)| shown(item)).collect();
        json!({
            "object": "list", "data": data, "first_id": edge(self.items.first()),
            "last_id": edge(self.items.last()), "has_more": self.has_more
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Page;
    use serde_json::Value;

    fn listed(after: Option<&str>, limit: usize) -> Option<(Vec<String>, bool)> {
        let page = Page { after: after.map(str::to_owned), limit: Some(limit), ..Page::default() };
        let items = ["a", "b", "c"].map(|name| (name.to_owned(), name));
        let page = page.of(items.into_iter(), 2, 3).ok()?.json(|name| Value::from(*name));
        let names = page["data"].as_array()?.iter();
        Some((
            names.filter_map(|name| Some(name.as_str()?.to_owned())).collect(),
            page["has_more"].as_bool()?,
        ))
    }

    #[test]
    fn a_page_follows_the_item_that_the_client_has() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(listed(None, 2), Some((names(&["a", "b"]), true)));
        assert_eq!(listed(Some("b"), 2), Some((names(&["c"]), false)));
        assert_eq!(listed(Some("c"), 1), Some((names(&[]), false)));
        assert_eq!((listed(Some("x"), 1), listed(None, 0), listed(None, 4)), (None, None, None));
    }
}
