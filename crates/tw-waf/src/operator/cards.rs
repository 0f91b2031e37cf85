//! Numbers with check digits.

fn digits(text: &[u8]) -> Vec<u32> {
    text.iter().filter(|byte| byte.is_ascii_digit()).map(|byte| u32::from(byte - b'0')).collect()
}

/// Number of a payment card: the sum of Luhn.
pub(super) fn is_card_number(text: &[u8]) -> bool {
    let digits = digits(text);
    let sum: u32 = (0..)
        .zip(digits.iter().rev())
        .map(|(at, digit)| match (at % 2, digit * 2) {
            (0, _) => *digit,
            (_, double) if double > 9 => double - 9,
            (_, double) => double,
        })
        .sum();
    digits.len() > 1 && sum.is_multiple_of(10)
}

/// Number of the social security of the United States: parts that were never given away are invalid.
pub(super) fn is_social_security_number(text: &[u8]) -> bool {
    let digits = digits(text);
    let number = |part: &[u32]| part.iter().fold(0, |sum, digit| sum * 10 + digit);
    let [area @ .., _, _, _, _, _, _] = &*digits else { return false };
    let group = digits.get(3..5).map(number);
    let serial = digits.get(5..9).map(number);
    let is_sequence = digits.iter().zip(digits.iter().skip(1)).all(|(one, next)| one + 1 == *next);
    let is_repeated = digits.iter().zip(digits.iter().skip(1)).all(|(one, next)| one == next);
    digits.len() == 9
        && !is_sequence
        && !is_repeated
        && !matches!(number(area), 0 | 666 | 740..)
        && group != Some(0)
        && serial != Some(0)
}

/// Number of the social security of Austria: the fourth digit checks the others.
pub(super) fn is_svnr(text: &[u8]) -> bool {
    const WEIGHTS: [u32; 10] = [3, 7, 9, 0, 5, 8, 4, 2, 1, 6];
    let digits = digits(text);
    let sum: u32 = digits.iter().zip(WEIGHTS).map(|(digit, weight)| digit * weight).sum();
    digits.len() == 10 && digits.first() != Some(&0) && digits.get(3) == Some(&(sum % 11))
}

/// Tax number of Brazil.
pub(super) fn is_cpf(text: &[u8]) -> bool {
    let digits = digits(text);
    let (Some(first), Some(second)) = (digits.get(9), digits.get(10)) else { return false };
    let check = |count: usize| {
        let weights = (2..=count as u32 + 1).rev();
        let sum: u32 = digits.iter().take(count).zip(weights).map(|(digit, weight)| digit * weight).sum();
        match 11 - sum % 11 {
            10 | 11 => 0,
            digit => digit,
        }
    };
    let all_same = digits.iter().all(|digit| Some(digit) == digits.first());
    digits.len() == 11 && !all_same && check(9) == *first && check(10) == *second
}
