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

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    };
    use rustls::pki_types::pem::PemObject;

    use super::*;

    fn pem(text: &[u8]) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(text).expect("a certificate")
    }

    fn made(
        names: &[&str],
        common_name: &str,
        algorithm: &'static rcgen::SignatureAlgorithm,
    ) -> CertificateDer<'static> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("params");
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate_for(algorithm).expect("a key");
        params.self_signed(&key).expect("a certificate").der().clone()
    }

    #[test]
    fn channel_binding_hashes_by_the_signatures_own_hash() {
        let p256 = made(&[], "x", &PKCS_ECDSA_P256_SHA256);
        assert_eq!(server_end_point(&p256), Some(Sha256::digest(&p256).to_vec()));
        let p384 = made(&[], "x", &PKCS_ECDSA_P384_SHA384);
        assert_eq!(server_end_point(&p384), Some(Sha384::digest(&p384).to_vec()));
        let pss = pem(include_bytes!("../testdata/pss-sha384.crt"));
        assert_eq!(server_end_point(&pss), Some(Sha384::digest(&pss).to_vec()));
        let sha1 = pem(include_bytes!("../testdata/rsa-sha1.crt"));
        assert_eq!(
            server_end_point(&sha1),
            Some(Sha256::digest(&sha1).to_vec()),
            "SHA-256 in place of SHA-1"
        );
    }

    #[test]
    fn no_channel_binding_for_signatures_without_a_hash_or_unreadable_certificates() {
        assert_eq!(server_end_point(&made(&[], "x", &PKCS_ED25519)), None);
        assert_eq!(server_end_point(&CertificateDer::from(vec![0x30, 0x80, 1])), None);
    }

    #[test]
    fn common_name_matches_exactly_or_by_one_leftmost_label() {
        let matches = |name: &str, host| common_name_matches(&made(&[], name, &PKCS_ECDSA_P256_SHA256), host);
        assert!(matches("db.example", "DB.example"));
        assert!(matches("*.shop.example", "db.shop.example"));
        assert!(matches("192.0.2.1", "192.0.2.1"));
        for (name, host) in [
            ("db.example", "db.example.evil"),
            ("*.shop.example", "a.db.shop.example"),
            ("*.shop.example", "shop.example"),
            ("*.shop.example", ".shop.example"),
            ("*.example", "db.example"),
            ("*.0.2.1", "192.0.2.1"),
            ("*", "localhost"),
            ("d*.shop.example", "db.shop.example"),
            ("", ""),
        ] {
            assert!(!matches(name, host), "{name} {host}");
        }
    }

    #[test]
    fn common_name_is_nothing_beside_an_alternative_name() {
        assert!(!common_name_matches(
            &made(&["other.example"], "db.example", &PKCS_ECDSA_P256_SHA256),
            "db.example"
        ));
        assert!(!common_name_matches(
            &made(&["192.0.2.1"], "db.example", &PKCS_ECDSA_P256_SHA256),
            "db.example"
        ));
    }

    #[test]
    fn validity_has_both_ends() {
        let certificate = pem(include_bytes!("../testdata/rsa-sha1.crt"));
        let at = |seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        assert!(is_valid_at(&certificate, UnixTime::now()));
        assert!(!is_valid_at(&certificate, at(0)));
        assert!(!is_valid_at(&certificate, at(200 * 365 * 86_400)));
        assert!(!is_valid_at(&CertificateDer::from(Vec::new()), UnixTime::now()));
    }
}
