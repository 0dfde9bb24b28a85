//! What helps when a host is not reached, by what ssh has said of it last.

/// Parts of ssh's messages, and what helps.
const KNOWN: [(&str, &str); 7] = [
    (
        "Host key verification failed",
        "its key is not known here: log in once by hand, or add it to known_hosts (ssh-keyscan)",
    ),
    (
        "Permission denied (",
        "ssh may not ask for a password: put a key into its authorized_keys (ssh-copy-id), or \
         start ssh-agent; `ssh HOST true` must just work",
    ),
    (
        "Too many authentication failures",
        "name the key to ssh: IdentityFile and IdentitiesOnly in ~/.ssh/config",
    ),
    (
        "Could not resolve hostname",
        "no such name: correct it in the list of hosts, or in /etc/hosts",
    ),
    (
        "Connection refused",
        "no ssh server listens there: look for sshd, or name its port in ~/.ssh/config",
    ),
    (
        "timed out",
        "nothing answers: is it switched on, and does a firewall let ssh through?",
    ),
    (
        "No route to host",
        "nothing answers: is it switched on, and does a firewall let ssh through?",
    ),
];

/// What helps against this; empty if that is not known.
pub(super) fn on(said: &str) -> &'static str {
    let meant = KNOWN.iter().find(|(part, _)| said.contains(part));
    meant.map_or("", |(_, helps)| helps)
}

/// What was said, with what helps.
pub(super) fn with(said: &str) -> String {
    match on(said) {
        "" => said.to_owned(),
        helps => format!("{said}: {helps}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ssh_says_is_answered() {
        let asks = with("root@n1: Permission denied (publickey,password).");
        assert!(
            asks.starts_with("root@n1: Permission denied (publickey,password).: ssh may not ask"),
            "{asks}"
        );
        assert!(with("Host key verification failed.").contains("known_hosts"));
        let name = with("ssh: Could not resolve hostname nx: Name or service not known");
        assert!(name.ends_with("or in /etc/hosts"), "{name}");
        // A shell's own words are none of ssh's.
        let own = "bash: /opt/outlive: Permission denied";
        assert_eq!((on(own), with(own)), ("", own.to_owned()));
        assert_eq!(with(""), "");
    }
}
