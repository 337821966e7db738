//! Which password a connection uses: the password file, the URL (or `PGPASSWORD`, or the service file), `.pgpass`. Files are read again
//! for each connection, so that a rotated password is taken up.

use std::io;
use std::path::{Path, PathBuf};

use super::passfile::{self, Lookup};
use super::{ConnectError, HostLabel, Url};
use crate::Secret;

/// A password file longer than this is not one.
const PASSWORD_BYTES_MAX: u64 = 64 * 1024;

/// Finds the password for `host`; `None` if there is none anywhere.
pub(super) async fn find(url: &Url, host: &HostLabel) -> Result<Option<Secret>, ConnectError> {
    if let Some(path) = url.password_file.clone() {
        return blocking(path, read_password_file).await.map(Some);
    }
    if url.password.is_some() {
        return Ok(url.password.clone());
    }
    let Some(path) = url.passfile.clone() else {
        return Ok(None);
    };
    let (host, database, user) = (host.clone(), url.database.clone(), url.user.clone());
    let shown = path.display().to_string();
    match blocking(path, move |path| passfile::look_up(path, &host, &database, &user)).await? {
        Lookup::Found(secret) => Ok(Some(secret)),
        Lookup::Absent => Ok(None),
        Lookup::Ignored(why) => {
            tracing::warn!(path = shown, "the password file is ignored: {why}");
            Ok(None)
        }
    }
}

fn read_password_file(path: &Path) -> io::Result<Secret> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path)?
        .take(PASSWORD_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    let invalid = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    match text {
        _ if read as u64 > PASSWORD_BYTES_MAX => invalid("it is larger than any password"),
        "" => invalid("it is empty"),
        _ if text.contains(['\0', '\n']) => invalid("it holds more than one line"),
        _ => Ok(Secret::from(text)),
    }
}

async fn blocking<T, F>(path: PathBuf, read: F) -> Result<T, ConnectError>
where
    T: Send + 'static,
    F: FnOnce(&Path) -> io::Result<T> + Send + 'static,
{
    let asked = path.clone();
    let read = tokio::task::spawn_blocking(move || read(&asked))
        .await
        .unwrap_or_else(|gone| Err(io::Error::other(gone)));
    read.map_err(|source| ConnectError::PasswordFile { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::FakeEnvironment;

    fn url(text: &str) -> Url {
        Url::parse(text, &FakeEnvironment::default()).expect("a URL")
    }

    #[tokio::test]
    async fn password_file_beats_the_url_and_is_read_again_each_time() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let url = url("postgres://u:fromurl@h/d").with_password_file(file.path().into());
        let host = url.hosts()[0].clone();
        for (text, password) in [("first\n", "first"), ("second \r\n", "second ")] {
            std::fs::write(file.path(), text).expect("written");
            let found = find(&url, &host).await.expect("read").expect("a password");
            assert_eq!(found.expose(), password);
        }
        for text in ["", "\n", "a\nb\n"] {
            std::fs::write(file.path(), text).expect("written");
            let error = find(&url, &host).await.expect_err("no password");
            assert!(matches!(error, ConnectError::PasswordFile { .. }), "{text:?}");
        }
    }

    #[tokio::test]
    async fn missing_password_file_is_an_error_that_names_it() {
        let url = url("postgres://u:canary@h/d").with_password_file("/nonexistent/password".into());
        let error = find(&url, &url.hosts()[0]).await.expect_err("no file");
        assert_eq!(
            error.to_string(),
            "cannot read the password file /nonexistent/password"
        );
    }

    #[tokio::test]
    async fn url_password_beats_pgpass() {
        let url = url("postgres://u:mine@h/d?passfile=/nonexistent/pgpass");
        let found = find(&url, &url.hosts()[0])
            .await
            .expect("found")
            .expect("a password");
        assert_eq!(found.expose(), "mine");
    }
}
