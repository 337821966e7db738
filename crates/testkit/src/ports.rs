//! Free ports for what tests start themselves.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::bail;

/// Ports of one process; processes that run at the same time mostly differ in `pid % BLOCKS`.
const BLOCK: u16 = 10;
const BLOCKS: u16 = 800;
/// Below the range of outgoing connections (32768 and up), and below those of `scripts/servers` (20000 and up): who goes
/// down and comes back finds its port free.
const FIRST: u16 = 12_000;

/// Returns an address of 127.0.0.1 on which nobody listens.
///
/// # Errors
/// No port of the range is free.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let block = u16::try_from(std::process::id() % u32::from(BLOCKS))?;
    for _ in 0..BLOCK * BLOCKS {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (block * BLOCK).wrapping_add(step) % (BLOCK * BLOCKS);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free port from {FIRST} to {}", FIRST + BLOCK * BLOCKS - 1)
}
