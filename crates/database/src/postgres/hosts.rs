//! The hosts of a URL: the lists `host`, `hostaddr` and `port` side by side.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::host::{HostLabel, Place};
use super::values::Values;

const PORT_DEFAULT: u16 = 5432;

/// Reads the three lists. `host` and `hostaddr` are of one length; `port` too, or it is one for all.
pub(super) fn hosts(values: &mut Values, socket_folder: &Path) -> Vec<HostLabel> {
    let names = list(values, "host");
    let addresses = list(values, "hostaddr");
    let ports = list(values, "port");
    let count = names.len().max(addresses.len()).max(1);
    if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
        values.fault("hostaddr", "lists another number of hosts than \"host\" does");
        return Vec::new();
    }
    if ports.len() > 1 && ports.len() != count {
        values.fault("port", "lists another number of ports than there are hosts");
        return Vec::new();
    }
    let mut hosts = Vec::new();
    for at in 0..count {
        let name = names.get(at).map_or("", String::as_str);
        let address = addresses.get(at).map_or("", String::as_str);
        let port = ports.get(at).or(ports.first()).map_or("", String::as_str);
        let place = place(values, name, address, socket_folder);
        let port = port_number(values, port);
        if let (Some(place), Some(port)) = (place, port) {
            hosts.push(HostLabel {
                place: Arc::new(place),
                port,
                encryption: None,
            });
        }
    }
    hosts
}

fn list(values: &Values, key: &str) -> Vec<String> {
    values
        .text(key)
        .map(|text| text.split(',').map(|entry| entry.trim().to_owned()).collect())
        .unwrap_or_default()
}

fn place(values: &mut Values, name: &str, address: &str, socket_folder: &Path) -> Option<Place> {
    if !address.is_empty() {
        let Ok(parsed) = address.parse::<IpAddr>() else {
            values.fault("hostaddr", "holds what is no IP address");
            return None;
        };
        let name = if name.is_empty() || name.starts_with('/') {
            parsed.to_string()
        } else {
            name.to_owned()
        };
        return Some(Place::Tcp {
            name,
            address: Some(parsed),
        });
    }
    if name.is_empty() {
        return Some(Place::Unix(socket_folder.to_owned()));
    }
    if name.starts_with('/') {
        return Some(Place::Unix(PathBuf::from(name)));
    }
    if name.starts_with('@') {
        values.fault("host", "is an abstract Unix socket, which is not supported");
        return None;
    }
    if name
        .chars()
        .any(|c| c.is_control() || c.is_whitespace() || "@/?#".contains(c))
    {
        values.fault("host", "holds a character that no host name has");
        return None;
    }
    Some(Place::Tcp {
        name: name.to_owned(),
        address: name.parse().ok(),
    })
}

fn port_number(values: &mut Values, text: &str) -> Option<u16> {
    if text.is_empty() {
        return Some(PORT_DEFAULT);
    }
    let port = text.parse().ok().filter(|port| *port != 0);
    if port.is_none() {
        values.fault("port", "is not a whole number from 1 to 65535");
    }
    port
}
