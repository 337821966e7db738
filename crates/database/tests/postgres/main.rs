//! The PostgreSQL part of the crate from outside: URLs, and negotiation with scripted servers in this process.

mod authorities;
mod encryption;
mod hosts;
mod scripted;
mod sessions;
mod surroundings;
mod url;
mod url_faults;
