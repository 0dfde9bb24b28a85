//! What an object store said, as an error of input and output.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io::{self, ErrorKind};

use outlive_vault::WriteError;

/// Longest answer of a server that is told.
const TOLD_BYTES_MAX: usize = 400;

/// The kind that callers decide by, and what people need to know.
pub(crate) fn io_error(error: &object_store::Error) -> io::Error {
    use object_store::Error as E;
    let kind = match error {
        E::NotFound { .. } => ErrorKind::NotFound,
        E::AlreadyExists { .. } => ErrorKind::AlreadyExists,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => ErrorKind::PermissionDenied,
        E::NotSupported { .. } | E::NotImplemented { .. } => ErrorKind::Unsupported,
        E::Precondition { .. } => ErrorKind::InvalidData,
        // A listing that is refused has no kind of its own there.
        E::Generic { source, .. } if is_refusal(&**source) => ErrorKind::PermissionDenied,
        _ => ErrorKind::Other,
    };
    match (kind, error) {
        // Told as of a file.
        (ErrorKind::NotFound, _) => kind.into(),
        (_, E::Precondition { .. }) => io::Error::new(kind, "it was replaced meanwhile"),
        _ => io::Error::new(kind, told(error)),
    }
}

/// True if a server answered so in any of the causes.
fn is_refusal(source: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(source);
    while let Some(inner) = cause {
        let text = inner.to_string();
        if ["401 Unauthorized", "403 Forbidden"]
            .iter()
            .any(|it| text.contains(it))
        {
            return true;
        }
        cause = inner.source();
    }
    false
}

/// The same for what is written.
pub(crate) fn write_error(
    at: &str,
    doing: &'static str,
    error: &object_store::Error,
) -> WriteError {
    WriteError::Io {
        path: at.to_owned(),
        doing,
        source: io_error(error),
    }
}

/// All causes in one line, without what a request was signed with.
fn told(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        // Most repeat what is below them.
        if !text.contains(&inner_text) {
            let _ = write!(text, ": {inner_text}");
        }
        cause = inner.source();
    }
    public(&text)
}

/// A server's answer in XML says what was signed, and with whose key; a URL may hold a signature.
/// Of an answer its code and message are kept, of a URL what stands before its query.
fn public(text: &str) -> String {
    let (before, answer) = text.split_at(text.find('<').unwrap_or(text.len()));
    let of = |name: &str| {
        let (_, rest) = answer.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|it| it.0)
    };
    let mut words: Vec<String> = before.split_whitespace().map(without_query).collect();
    words.extend(
        [of("Code"), of("Message")]
            .into_iter()
            .flatten()
            .map(str::to_owned),
    );
    let mut text = words.join(" ");
    if text.len() > TOLD_BYTES_MAX {
        let end = (0..=TOLD_BYTES_MAX)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push_str(" ...");
    }
    text
}

fn without_query(word: &str) -> String {
    match (word.contains("://"), word.split_once('?')) {
        (true, Some((before, _))) => before.to_owned(),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_signed_is_not_told() {
        let text = "Error performing PUT https://b.s3.amazonaws.com/x?sig=SECRET in 2ms - Server \
                    returned non-2xx status code: 403 Forbidden: <?xml version=\"1.0\"?><Error>\
                    <Code>SignatureDoesNotMatch</Code><Message>it does not match</Message>\
                    <AWSAccessKeyId>AKIA1</AWSAccessKeyId><StringToSign>SECRET</StringToSign></Error>";
        let told = public(text);
        assert!(
            told.ends_with("403 Forbidden: SignatureDoesNotMatch it does not match"),
            "{told}"
        );
        assert!(
            told.contains("https://b.s3.amazonaws.com/x in 2ms"),
            "{told}"
        );
        assert!(
            !told.contains("SECRET") && !told.contains("AKIA1"),
            "{told}"
        );
        let long = public(&"ä".repeat(TOLD_BYTES_MAX));
        assert!(long.len() < TOLD_BYTES_MAX + 10);
    }

    #[test]
    fn kinds_are_those_of_files() {
        let source = || "x".into();
        let path = || "p".to_owned();
        let missing = object_store::Error::NotFound {
            path: path(),
            source: source(),
        };
        assert_eq!(io_error(&missing).kind(), ErrorKind::NotFound);
        let refused = object_store::Error::Unauthenticated {
            path: path(),
            source: source(),
        };
        assert_eq!(io_error(&refused).kind(), ErrorKind::PermissionDenied);
    }
}
