//! The checks of the fuzz targets, with few inputs.

use tw_testkit::corpus::Mutations;

#[path = "../../../fuzz/checks/certificate.rs"]
mod certificate;
#[path = "../../../fuzz/checks/client_hello.rs"]
mod client_hello;
#[path = "../../../fuzz/checks/pem.rs"]
mod pem;
#[path = "../../../fuzz/checks/tls_words.rs"]
mod tls_words;

/// Some seconds for each target without optimisation.
const MUTATIONS: Mutations<'_> =
    Mutations { count: 2000, alphabet: b"\r\n\r\n \t:=,;\"\\*@()?0129aAzZ-_./\x00\x01\x7f\x80\xff" };

#[test]
fn certificates_and_ocsp_responses() {
    MUTATIONS.run("certificate", certificate::check);
}

#[test]
fn client_hellos() {
    MUTATIONS.run("client_hello", client_hello::check);
}

#[test]
fn files_of_certificates_and_keys() {
    MUTATIONS.run("pem", pem::check);
}

#[test]
fn words_of_openssl() {
    MUTATIONS.run("tls_words", tls_words::check);
}
