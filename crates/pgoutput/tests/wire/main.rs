//! The decoder against bytes made by hand, by a small encoder, by real servers, and damaged.

mod damage;
mod encoder;
mod handmade;
mod properties;
mod recorded;
mod transcript;
