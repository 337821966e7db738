#![allow(missing_docs, clippy::print_stdout)]
use tailpost_database::{SystemEnvironment, postgres::*};
#[tokio::main]
async fn main() {
    for text in std::env::args().skip(1) {
        let url = match Url::parse(&text, &SystemEnvironment) {
            Ok(u) => u,
            Err(f) => {
                for f in f {
                    println!("FAULT {f}");
                }
                continue;
            }
        };
        match SqlSession::connect(&url, "tailpost/x@y").await {
            Ok(s) => {
                let r = s.client().query_one("select coalesce((select ssl::text||' '||coalesce(version,'') from pg_stat_ssl where pid=pg_backend_pid()),'?') || ' app='||current_setting('application_name')||' st='||current_setting('statement_timeout') || ' ' || current_user || ' ' || coalesce(inet_server_addr()::text,'unix')", &[]).await;
                match r {
                    Ok(r) => println!(
                        "OK  {:60} {} {:?}",
                        url.redacted(),
                        r.get::<_, String>(0),
                        s.host()
                    ),
                    Err(e) => println!("query: {e}"),
                }
                let c = connect_to(&url, s.host())
                    .await
                    .map(|c| (c.tls, c.loopback, c.server_end_point.map(|e| e.len())));
                println!("      connect_to {c:?}");
                if std::env::var("WAIT").is_ok() {
                    println!("closed: {:?}", s.closed().await);
                } else {
                    s.close().await;
                }
            }
            Err(e) => {
                let mut t = e.to_string();
                let mut s = std::error::Error::source(&e);
                while let Some(c) = s {
                    t += ": ";
                    t += &c.to_string();
                    s = c.source();
                }
                println!(
                    "ERR {:60} {:?} {t} | HINT {:?}",
                    url.redacted(),
                    e.kind(),
                    e.hint()
                )
            }
        }
        for n in url.security_notes() {
            println!("      NOTE {n}");
        }
    }
}
