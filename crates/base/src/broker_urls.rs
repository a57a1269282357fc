//! Addresses of a cluster's nodes in one text.

/// Returns the addresses in a text: of one broker, or of the nodes of a cluster, separated by commas or
/// white space. A comma within an address, such as in a password, separates nothing.
pub fn broker_urls(urls: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(urls.trim());
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let separators =
            text.char_indices().filter(|(_, each)| *each == ',' || each.is_whitespace());
        let next =
            separators.map(|(at, each)| (at, text[at + each.len_utf8()..].trim_start())).find(
                |(_, next)| ["amqp://", "amqps://"].iter().any(|scheme| next.starts_with(scheme)),
            );
        rest = next.map(|(_, next)| next);
        Some(next.map_or(text, |(at, _)| text[..at].trim_end()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_urls(text: &str, expected: &[&str]) {
        assert_eq!(broker_urls(text).collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn addresses_are_separated_by_commas_or_lines() {
        check_urls("amqp://a/%2f", &["amqp://a/%2f"]);
        check_urls("amqp://a,amqps://b", &["amqp://a", "amqps://b"]);
        check_urls(" amqp://a ,\n amqps://b\n\namqp://c\n", &["amqp://a", "amqps://b", "amqp://c"]);
        check_urls("amqp://me:p,q@a,amqp://me:p q@b", &["amqp://me:p,q@a", "amqp://me:p q@b"]);
        check_urls("amqp://a,b", &["amqp://a,b"]);
        check_urls("", &[""]);
    }
}
