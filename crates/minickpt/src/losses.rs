//! What did not come back although the rest did: it is told one by one.

use outlive_base::{Code, Entity, Error};

/// An error for each: processes with the reason, and descriptors.
pub fn told(lost: &[(i32, String)], gone: &[String]) -> Vec<Error> {
    let process = |(pid, why): &(i32, String)| {
        Error::new(
            Code::Unsupported,
            Entity::Call,
            format!("process {pid} could not be kept: {why}"),
            "start that program again",
        )
    };
    let file = |what: &String| {
        Error::new(
            Code::Unsupported,
            Entity::Call,
            format!("{what}; each call on it fails with EBADF"),
            "let the program open it again, or start it again",
        )
    };
    lost.iter()
        .map(process)
        .chain(gone.iter().map(file))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_is_told_by_its_name() {
        let lost = [(
            7,
            "thread 8 ran on a processor that never answered".to_owned(),
        )];
        let gone = ["descriptor 3 of process 9: /tmp/x".to_owned()];
        let said: Vec<String> = told(&lost, &gone).iter().map(Error::to_string).collect();
        let said = said.join("\n");
        assert!(
            said.contains("process 7 could not be kept: thread 8 ran"),
            "{said}"
        );
        assert!(
            said.contains("/tmp/x; each call on it fails with EBADF"),
            "{said}"
        );
    }
}
