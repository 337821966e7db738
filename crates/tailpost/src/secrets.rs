//! A URL's password on the command line would stand in `ps` for all to read. It is moved to the environment, and the
//! process executes itself anew at once.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Flags whose URL may hold a password, and the variables that they can come from.
const URL_FLAGS: [(&str, &str); 2] = [("--source", "TAILPOST_SOURCE"), ("--broker", "TAILPOST_BROKER")];

/// The command line without secrets, and the variables that now hold them.
#[derive(Debug, PartialEq, Eq)]
struct Moved {
    args: Vec<OsString>,
    variables: Vec<(&'static str, String)>,
}

/// Executes the process anew when its command line holds a password; returns only when it doesn't, or when that fails.
///
/// # Errors
/// When the executable cannot be found or executed.
pub(crate) fn hide(args: Vec<OsString>) -> io::Result<()> {
    let Some(moved) = move_secrets(args) else {
        return Ok(());
    };
    let error = Command::new(std::env::current_exe()?)
        .args(moved.args)
        .envs(moved.variables)
        .exec();
    Err(error)
}

/// `args` without the program's name. `None` when there is nothing to hide.
fn move_secrets(args: Vec<OsString>) -> Option<Moved> {
    let mut moved = Moved {
        args: Vec::new(),
        variables: Vec::new(),
    };
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy().into_owned();
        let Some((flag, variable)) = URL_FLAGS
            .into_iter()
            .find(|(flag, _)| text == *flag || text.starts_with(&format!("{flag}=")))
        else {
            moved.args.push(arg);
            continue;
        };
        let value = match text.strip_prefix(flag).and_then(|rest| rest.strip_prefix('=')) {
            Some(value) => Some(value.to_owned()),
            None => args.next().map(|value| value.to_string_lossy().into_owned()),
        };
        match value {
            Some(value) if has_password(&value) => moved.variables.push((variable, value)),
            Some(value) => moved.args.extend([flag.into(), value.into()]),
            None => moved.args.push(arg),
        }
    }
    (!moved.variables.is_empty()).then_some(moved)
}

/// Tells whether a URL, or a list of them, holds a password; when in doubt it does.
fn has_password(urls: &str) -> bool {
    let after_scheme = urls.split_once("://").map_or(urls, |(_, rest)| rest);
    let user_info = after_scheme.rsplit_once('@').map(|(user_info, _)| user_info);
    user_info.is_some_and(|user_info| user_info.contains(':')) || urls.contains("password=")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(args: &[&str]) -> Option<Moved> {
        move_secrets(args.iter().map(OsString::from).collect())
    }

    #[test]
    fn a_password_leaves_the_command_line_in_either_spelling() {
        let url = "postgres://app:s3cret@db/shop";
        let expected = Moved {
            args: vec!["postgres".into(), "run".into()],
            variables: vec![("TAILPOST_SOURCE", url.into())],
        };
        assert_eq!(
            moved(&["postgres", "run", "--source", url]).as_ref(),
            Some(&expected)
        );
        assert_eq!(
            moved(&["postgres", "run", &format!("--source={url}")]).as_ref(),
            Some(&expected)
        );
        assert_eq!(
            moved(&["--broker", "amqp://h,amqp://u:p@h2"]).map(|moved| moved.variables.len()),
            Some(1)
        );
        assert_eq!(
            moved(&["--source", "postgres://u:a,b@db/shop"]).map(|moved| moved.variables.len()),
            Some(1)
        );
        assert_eq!(
            moved(&["--source", "postgres://db/shop?password=x"]).map(|moved| moved.variables.len()),
            Some(1)
        );
    }

    #[test]
    fn a_command_line_without_a_password_is_left_alone() {
        assert_eq!(
            moved(&[
                "postgres",
                "run",
                "--source",
                "postgres://app@db:5432/shop",
                "--broker"
            ]),
            None
        );
    }
}
