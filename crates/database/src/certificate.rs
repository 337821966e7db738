//! What rustls does not tell of a server's certificate: its hash for channel binding, its validity and its common name.
//! Nothing here is trusted by itself; see `tls.rs` for who asks and why.

use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::der::asn1::{AnyRef, ContextSpecific, ObjectIdentifier};
use x509_cert::der::oid::db::{rfc5912, rfc8410};
use x509_cert::der::{Decode, Encode, Reader, SliceReader, TagNumber};
use x509_cert::ext::pkix::name::{DirectoryString, GeneralName};
use x509_cert::ext::pkix::{NameConstraints, SubjectAltName};
use x509_cert::spki::AlgorithmIdentifierOwned;

/// Returns `tls-server-end-point` (RFC 5929, section 4.1): the certificate's hash by the hash function of its own signature
/// (RFC 5280, section 4.1.1.2), SHA-256 in place of MD5 and SHA-1. `None` where the signature has no hash function of its own, or
/// the certificate cannot be read: there is then no channel binding.
pub(crate) fn server_end_point(der: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let certificate = Certificate::from_der(der).ok()?;
    let hash = match hash_of_signature(certificate.signature_algorithm())? {
        Hash::Sha224 => Sha224::digest(der).to_vec(),
        Hash::Sha256 => Sha256::digest(der).to_vec(),
        Hash::Sha384 => Sha384::digest(der).to_vec(),
        Hash::Sha512 => Sha512::digest(der).to_vec(),
    };
    Some(hash)
}

/// Tells whether `now` lies within the certificate's validity; `false` if it cannot be read.
pub(crate) fn is_valid_at(der: &CertificateDer<'_>, now: UnixTime) -> bool {
    let Ok(certificate) = Certificate::from_der(der) else {
        return false;
    };
    let validity = certificate.tbs_certificate().validity();
    let (from, to) = (
        validity.not_before.to_unix_duration(),
        validity.not_after.to_unix_duration(),
    );
    (from.as_secs()..=to.as_secs()).contains(&now.as_secs())
}

/// Tells whether `host` matches the common name of a certificate that has no alternative name to go by, as libpq does
/// (manual, "Client Verification of Server Certificates"). A wildcard stands for one leftmost label.
pub(crate) fn common_name_matches(der: &CertificateDer<'_>, host: &str) -> bool {
    common_name(der).is_some_and(|pattern| matches_host(&pattern, host))
}

/// Tells whether the certificate, an authority's, may vouch for certain names only. `true` if it cannot be read.
pub(crate) fn constrains_names(der: &CertificateDer<'_>) -> bool {
    match Certificate::from_der(der) {
        Ok(certificate) => {
            let constraints = certificate.tbs_certificate().get_extension::<NameConstraints>();
            !matches!(constraints, Ok(None))
        }
        Err(_) => true,
    }
}

/// Returns the public key in the form that rustls verifies signatures with.
pub(crate) fn public_key(der: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let certificate = Certificate::from_der(der).ok()?;
    certificate
        .tbs_certificate()
        .subject_public_key_info()
        .to_der()
        .ok()
        .map(SubjectPublicKeyInfoDer::from)
}

/// RFC 3279, section 2.2.3; the crate's list lacks it.
const ECDSA_WITH_SHA_1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.1");

enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

fn hash_of_signature(algorithm: &AlgorithmIdentifierOwned) -> Option<Hash> {
    if algorithm.oid == rfc5912::ID_RSASSA_PSS {
        return hash_of_pss(algorithm);
    }
    match algorithm.oid {
        rfc5912::MD_5_WITH_RSA_ENCRYPTION
        | rfc5912::SHA_1_WITH_RSA_ENCRYPTION
        | ECDSA_WITH_SHA_1
        | rfc5912::SHA_256_WITH_RSA_ENCRYPTION
        | rfc5912::ECDSA_WITH_SHA_256 => Some(Hash::Sha256),
        rfc5912::SHA_224_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_224 => Some(Hash::Sha224),
        rfc5912::SHA_384_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_384 => Some(Hash::Sha384),
        rfc5912::SHA_512_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_512 => Some(Hash::Sha512),
        // Ed25519 and Ed448 hash within the signature: RFC 5929 leaves them undefined.
        rfc8410::ID_ED_25519 | rfc8410::ID_ED_448 => None,
        _ => None,
    }
}

/// `RSASSA-PSS-params` (RFC 4055, section 3.1): the first field, tagged 0, names the hash; absent it is SHA-1.
fn hash_of_pss(algorithm: &AlgorithmIdentifierOwned) -> Option<Hash> {
    let parameters = algorithm.parameters.as_ref()?.to_der().ok()?;
    let parameters = AnyRef::from_der(&parameters).ok()?;
    let mut reader = SliceReader::new(parameters.value()).ok()?;
    if reader.is_finished() {
        return Some(Hash::Sha256);
    }
    let hash =
        ContextSpecific::<AlgorithmIdentifierOwned>::decode_explicit(&mut reader, TagNumber(0)).ok()?;
    hash.map_or(Some(Hash::Sha256), |hash| hash_by_name(hash.value.oid))
}

fn hash_by_name(oid: ObjectIdentifier) -> Option<Hash> {
    match oid {
        rfc5912::ID_SHA_1 | rfc5912::ID_SHA_256 => Some(Hash::Sha256),
        rfc5912::ID_SHA_224 => Some(Hash::Sha224),
        rfc5912::ID_SHA_384 => Some(Hash::Sha384),
        rfc5912::ID_SHA_512 => Some(Hash::Sha512),
        _ => None,
    }
}

/// The subject's common name, unless an alternative name of a host takes its place.
fn common_name(der: &CertificateDer<'_>) -> Option<String> {
    let certificate = Certificate::from_der(der).ok()?;
    let certificate = certificate.tbs_certificate();
    if let Some((_, SubjectAltName(names))) = certificate.get_extension::<SubjectAltName>().ok()? {
        let names_a_host =
            |name: &GeneralName| matches!(name, GeneralName::DnsName(_) | GeneralName::IpAddress(_));
        if names.iter().any(names_a_host) {
            return None;
        }
    }
    match certificate.subject().common_name().ok()?? {
        DirectoryString::PrintableString(text) => Some(text.to_string()),
        DirectoryString::TeletexString(text) => Some(text.to_string()),
        DirectoryString::Utf8String(text) => Some(text),
        DirectoryString::BmpString(text) => Some(text.to_string()),
    }
}

fn matches_host(pattern: &str, host: &str) -> bool {
    if pattern.contains('\0') || host.is_empty() {
        return false;
    }
    let Some(suffix) = pattern.strip_prefix("*.") else {
        return pattern.eq_ignore_ascii_case(host);
    };
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    match host.split_once('.') {
        Some((label, rest)) => {
            !is_address && !label.is_empty() && suffix.contains('.') && suffix.eq_ignore_ascii_case(rest)
        }
        None => false,
    }
}
