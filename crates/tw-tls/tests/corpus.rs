//! The checks of the fuzz targets, run over their checked-in inputs and over mutations of these from a fixed seed.

use std::path::PathBuf;

use tw_testkit::Random;

#[path = "../../../fuzz/checks/certificate.rs"]
mod certificate;
#[path = "../../../fuzz/checks/pem.rs"]
mod pem;
#[path = "../../../fuzz/checks/tls_words.rs"]
mod tls_words;

/// Mutations per target: some seconds without optimisation.
const MUTATIONS: usize = 2000;

/// Bytes that something gives a meaning to.
const ALPHABET: &[u8] = b"\r\n\r\n \t:=,;\"\\*@()?0129aAzZ-_./\x00\x01\x7f\x80\xff";

fn run(target: &str, check: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).expect("the inputs are there");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "few inputs in {}", folder.display());
    let inputs: Vec<_> =
        paths.iter().map(|path| std::fs::read(path).expect("an input can be read")).collect();
    inputs.iter().for_each(|input| check(input));
    check(b"");
    let mut random = Random::new(0x7477_746c_7300_0000);
    for _ in 0..MUTATIONS {
        let mut input = inputs[random.below(inputs.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut input, &mut random);
        }
        check(&input);
    }
}

fn mutate(input: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(input.len());
    match random.below(5) {
        0 => input.insert(at, random.one_of(ALPHABET)),
        1 if !input.is_empty() => input[at] = random.one_of(ALPHABET),
        2 if !input.is_empty() => drop(input.remove(at)),
        3 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        _ => {
            let copy = input[at..at + random.below(input.len() - at)].to_vec();
            input.splice(at..at, copy);
        }
    }
}

#[test]
fn certificates_and_what_is_said_of_them() {
    run("certificate", certificate::check);
}

#[test]
fn files_of_certificates_and_keys() {
    run("pem", pem::check);
}

#[test]
fn words_of_openssl() {
    run("tls_words", tls_words::check);
}
