//! Tests of the table of API keys: an oracle of lines, broken files, the form of keys.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_800_000_000;

fn table(text: &str) -> ApiKeyTable {
    ApiKeyTable::parse(text.as_bytes()).unwrap_or_else(|reason| panic!("{text:?} {reason}"))
}

/// Account, tier and note of a key.
fn found<'t>(table: &'t ApiKeyTable, key: &str) -> Option<(&'t str, Option<&'t str>, Option<&'t str>)> {
    let key = table.find_key(&ApiKeyHash::of_key(key.as_bytes()), NOW)?;
    let text = |value| str::from_utf8(value).expect("UTF-8");
    Some((text(key.account()), key.tier(), key.column("note").map(text)))
}

fn hex(key: &str) -> String {
    ApiKeyHash::of_key(key.as_bytes()).to_string()
}

#[test]
fn a_hash_is_that_of_sha256sum() {
    let known = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";
    assert_eq!(hex("password"), known);
    assert!(ApiKeyHash::from_hex(known.to_uppercase().as_bytes()) == Some(ApiKeyHash::of_key(b"password")));
    for wrong in ["", "5e", &known[1..], &format!("{known}0"), &known.replace('5', "g")] {
        assert!(ApiKeyHash::from_hex(wrong.as_bytes()).is_none(), "{wrong}");
    }
}

#[test]
fn a_line_gives_its_key_an_account_a_tier_and_further_values() {
    let (one, two, three) = (hex("one"), hex("two"), hex("three"));
    let text = format!(
        "\u{feff}# keys\r\nnote, SHA256 ,account,tier,until,Disabled\r\n\
         \"web, \"\"shop\"\"\",{one},acme,gold,2027-01-31T00:00:00Z,\r\n\r\n\
         ,{two},m\u{fc}ller\r\nx,{three},three,,,FALSE"
    );
    let table = table(&text);
    assert_eq!(found(&table, "one"), Some(("acme", Some("gold"), Some("web, \"shop\""))));
    assert_eq!(found(&table, "two"), Some(("m\u{fc}ller", None, None)));
    assert_eq!(found(&table, "three"), Some(("three", None, Some("x"))));
    assert_eq!(found(&table, "four"), None);
    assert_eq!((table.entries.len(), table.columns().collect::<Vec<_>>()), (3, vec!["note"]));
    assert_eq!((&table.tiers[..], table.warning()), (&["gold".into()][..], None));
    assert!(!format!("{table:?}").contains("acme"));
}

#[test]
fn a_key_that_is_expired_or_disabled_is_unknown() {
    let [past, future, disabled, offset] = ["past", "future", "disabled", "offset"].map(hex);
    // NOW is 2027-01-15T08:00:00Z.
    let table = table(&format!(
        "sha256,account,until,disabled\n{past},a,2027-01-15T08:00:00Z\n{future},a,2027-01-15T08:00:01Z,\n\
         {disabled},a,,yes\n{offset},a,2027-01-15T09:00:01+01:00,false\n"
    ));
    let known = |key| found(&table, key).is_some();
    assert_eq!(["past", "future", "disabled", "offset"].map(known), [false, true, false, true]);
}

#[test]
fn the_last_line_of_a_key_counts_also_if_it_is_broken() {
    let mut lines: Vec<String> = (0..300).map(|n| format!("{},acct{n},", hex(&n.to_string()))).collect();
    lines.push(format!("{},other,", hex("7")));
    lines.push(format!("{},acct8,never", hex("8")));
    let table = table(&format!("sha256,account,until\n{}\n", lines.join("\n")));
    assert_eq!(found(&table, "7"), Some(("other", None, None)));
    assert_eq!(found(&table, "8"), None);
    assert_eq!(found(&table, "9"), Some(("acct9", None, None)));
    let warning = table.warning().expect("a line is broken");
    assert!(warning.starts_with("has a broken line: line 303 has a time that is not"), "{warning}");
}

#[test]
fn a_line_is_broken_for_one_reason_and_quotes_nothing() {
    let hash = hex("key");
    let good: String = (0..400).map(|n| format!("{},good\n", hex(&n.to_string()))).collect();
    for (line, reason) in [
        (hash.clone(), "no account"),
        (format!("{hash},\t"), "no account"),
        ("secret-key,acme".to_owned(), "a hash that is not 64 hexadecimal digits"),
        (format!("{hash},acme,go ld"), "a tier that cannot be a name"),
        (format!("{hash},acme,gold,tomorrow"), "a time that is not written as"),
        (format!("{hash},acme,gold,,,x,y"), "more values than the header has columns"),
        (format!("{hash},\"acme"), "a quotation mark that is not closed"),
        (format!("{hash},ac\x07me"), "control bytes"),
        (format!("{hash},{}", "a".repeat(256)), "too long"),
        (format!("{hash},a,,,,{}", "a".repeat(256)), "a further column that is too long"),
        (format!("{hash},a{}", ",".repeat(40)), "more than 32 values"),
        (format!("{hash},{}", "a".repeat(9_000)), "more than 8 KiB"),
    ] {
        let text = format!("sha256,account,tier,until,disabled,note\n{good}{line}\n{},last\n", hex("last"));
        let table = table(&text);
        let warning = table.warning().unwrap_or_default();
        assert!(warning.contains("line 402 has") && warning.contains(reason), "{line}: {warning}");
        assert!(!warning.contains("acme") && !warning.contains("secret-key"), "{warning}");
        assert_eq!(found(&table, "last"), Some(("last", None, None)), "{line}");
        assert_eq!(found(&table, "key"), None, "{line}");
    }
    let latin1 = [format!("sha256,account\n{good}{hash},m").as_bytes(), b"\xfc"].concat();
    let warning = ApiKeyTable::parse(&latin1).unwrap().warning().unwrap_or_default();
    assert!(warning.contains("not UTF-8"), "{warning}");
}

#[test]
fn a_file_with_too_many_broken_lines_or_without_its_header_is_broken() {
    let good =
        |count: usize| -> String { (0..count).map(|n| format!("{},a\n", hex(&n.to_string()))).collect() };
    for (text, reason) in [
        (String::new(), "has no header"),
        ("# nothing\n".to_owned(), "has no header"),
        ("account,tier\n".to_owned(), "has no column `sha256` in its header"),
        ("sha256,tier\n".to_owned(), "has no column `account` in its header"),
        ("sha256,account,Account\n".to_owned(), "has the column `Account` twice"),
        (good(3), "has no column `sha256`"),
        (format!("sha256,account\n{}x,y\n", good(98)), "has a broken line: line 100 has a hash"),
        (format!("sha256,account\nx,y\n{}x,y\n", good(150)), "has 2 broken lines: line 2 has a hash"),
    ] {
        let message = ApiKeyTable::parse(text.as_bytes()).expect_err(reason);
        assert!(message.starts_with(reason), "{message}");
    }
    assert!(table(&format!("sha256,account\n{}x,y\n", good(99))).warning().is_some());
    assert!(table("sha256,account").entries.is_empty());
    assert_eq!(found(&table("sha256,account"), "one"), None);
}

#[test]
fn a_key_that_is_made_here_is_checked_without_the_table() {
    let key = generate_key().unwrap();
    assert!(
        key.len() == 40 && key.starts_with("sgk_") && key[4..].bytes().all(|byte| BASE62.contains(&byte))
    );
    assert_ne!(key, generate_key().unwrap());
    assert!(!is_mistyped(key.as_bytes()));
    for at in 4..key.len() {
        let mut other = key.clone().into_bytes();
        other[at] = if other[at] == b'x' { b'y' } else { b'x' };
        assert!(is_mistyped(&other), "{at}");
    }
    assert!(
        is_mistyped(&key.as_bytes()[..39])
            && is_mistyped(b"sgk_")
            && is_mistyped(format!("{key}0").as_bytes())
    );
    assert!(!is_mistyped(b"sk_live_1234") && !is_mistyped(b""));
    // Its end is the result of zlib's crc32, computed with Python.
    assert!(!is_mistyped(b"sgk_0000000000000000000000000000002C8GjS"));
}

proptest! {
    /// The table finds the same as a map that the lines are put into one by one.
    #[test]
    fn the_table_agrees_with_a_map(keys in prop::collection::vec((0_u32..300, 0_u8..4, any::<bool>()), 0..400)) {
        let mut map = HashMap::new();
        let mut text = "sha256,account,tier,disabled\n".to_owned();
        for (key, tier, disabled) in keys {
            let (key, tier) = (format!("key{key}"), format!("t{tier}"));
            text += &format!("{},of-{key},{tier},{}\n", hex(&key), if disabled { "x" } else { "" });
            map.insert(key, (tier, disabled));
        }
        let table = table(&text);
        prop_assert_eq!(table.entries.len(), map.len());
        for key in (0..300).map(|key| format!("key{key}")) {
            let expected = map.get(&key).filter(|(_, disabled)| !disabled);
            let account = format!("of-{key}");
            let expected = expected.map(|(tier, _)| (account.as_str(), Some(tier.as_str()), None));
            prop_assert_eq!(found(&table, &key), expected);
        }
    }
}

#[test]
fn an_account_has_the_date_of_its_first_line_that_has_one() {
    let hashes = ["one", "two", "three", "four", "five", "six"].map(hex);
    let [one, two, three, four, five, six] = &hashes;
    let text = format!(
        "sha256,account,disabled,Anchor\n{one},bolt,,\n{two},acme,yes,2024-01-31\n{three},bolt,,2023-02-28\n\
         {four},acme,,2024-01-31\n{five},acme,,2023-01-31\n{six},zeta,,\n"
    );
    let dated = table(&text);
    let date = |text: &str| Anchor::parse(text.as_bytes());
    assert_eq!(dated.find_anchor(b"acme"), date("2024-01-31"), "a disabled key tells it as well");
    assert_eq!(dated.find_anchor(b"bolt"), date("2023-02-28"));
    for unknown in ["zeta", "acm", "acme2", "", "a", "zz"] {
        assert_eq!(dated.find_anchor(unknown.as_bytes()), None, "{unknown}");
    }
    let warning = "has another anchor for an account in line 6 than in an earlier line, which counts";
    assert_eq!(dated.warning().as_deref(), Some(warning));
    assert!(!dated.columns().any(|column| column == "Anchor"));
    assert_eq!(table(&text.replace("2023-01-31", "2024-01-31")).warning(), None);
    let more = table(&format!("{text}{},bolt,,2024-12-01\n", hex("seven")));
    assert_eq!(more.warning().as_deref(), Some(warning), "the first of them is told");
}

#[test]
fn a_date_that_cannot_be_read_is_told_with_its_line() {
    let good: String = (0..200).map(|n| format!("{},a{n},2024-02-29\n", hex(&n.to_string()))).collect();
    let text = format!("sha256,account,anchor\n{good}{},acme,2023-02-29\n", hex("acme"));
    let broken = table(&text);
    let reason = "line 202 has an anchor that is not a date such as 2024-01-31";
    assert_eq!(broken.warning(), Some(format!("has a broken line: {reason}; the others count")));
    assert_eq!((broken.find_anchor(b"acme"), found(&broken, "acme")), (None, None));
    let both = table(&format!("{text}{},a7,2024-03-01\n", hex("other")));
    let others = "has another anchor for an account in line 203 than in an earlier line, which counts";
    assert_eq!(both.warning(), Some(format!("has a broken line: {reason}; the others count; it {others}")));
    let alone = format!("sha256,account,anchor\n{},acme,31.01.2024\n", hex("acme"));
    let refused = ApiKeyTable::parse(alone.as_bytes()).err();
    let reason = "has a broken line: line 2 has an anchor that is not a date such as 2024-01-31";
    assert_eq!(refused.as_deref(), Some(reason));
}
