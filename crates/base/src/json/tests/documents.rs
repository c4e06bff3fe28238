//! Documents for the tests of the scanner.

/// Documents at the edges of the grammar, valid and not.
pub(super) const NASTY: &[&str] = &[
    "",
    " ",
    "{}",
    "[]",
    "{",
    "[",
    "}",
    "]",
    "[]]",
    "[]x",
    "\u{c}5",
    "[] \t\r\n",
    "{]",
    "[}",
    "[,]",
    "[1,]",
    "[,1]",
    "{,}",
    r#"{"a"}"#,
    r#"{"a":}"#,
    r#"{"a":1,}"#,
    r#"{"a":1 "b":2}"#,
    r#"{"a" 1}"#,
    "{a:1}",
    "{'a':1}",
    r#"{"a":1}{"a":2}"#,
    r#"{"a":1,"a":2}"#,
    r#"{"a":{"b":1},"a":2}"#,
    r#"{"a":{"b":"x"},"a":{"c":"y"}}"#,
    r#"{"a":[{"b":"x"},{"b":"yy","b":"z"}],"b":1,"a":[{"b":"q"}]}"#,
    r#"{"a":[{"b":"x"},{"b":"yy","b":[]}]}"#,
    r#"{"a":[[{"b":1}],{"b":"ü"},{"0":{"b":1}}]}"#,
    r#"{"0":1,"1":{"a":true}}"#,
    r#"{"\u0061":"\u0062\n\"\\\/\b\f\r\t","a\/b":null,"":1,"\u00e9\n":"é"}"#,
    r#"["\ud83e\udd80","🦀","\u0000"]"#,
    r#"["\ud83e"]"#,
    r#"["\udd80"]"#,
    r#"["\ud83e\ud83e"]"#,
    r#"["\ud83ex"]"#,
    r#"["\ud83e\n"]"#,
    r#"["\ud83e\n\udd80"]"#,
    r#"["\ud83e\u0041"]"#,
    r#"["\ud83e\"]"#,
    r#"["\ud83e\ud83e\udd80\udd80\\ud83e"]"#,
    r#"["\ud83e\ud8"]"#,
    r#"{"a\ud83e":1,"\udd80a":2,"a":3,"b":"x\ud83ey\ud83e"}"#,
    r#"["\u00g0"]"#,
    r#"["\u00"]"#,
    r#"["\x"]"#,
    r#"["\U0041"]"#,
    "[\"\n\"]",
    "[\"\u{7f}\u{80}\"]",
    "[\"\u{1f}\"]",
    "\"a",
    "\"a\"b",
    "\u{feff}{}",
    "\u{feff} [\"\u{feff}\"]",
    "\u{feff}",
    "\u{feff}\u{feff}{}",
    "\u{feff} \u{feff}[]",
    "\u{feff}]",
    "\u{fefe}{}",
    "tru",
    "true",
    "truex",
    "nul",
    "null ",
    "nulll",
    "falze",
    "[True]",
    "NaN",
    "[Infinity]",
    "//",
    "[1]//",
    "/**/1",
    "0",
    "-",
    "-0",
    "+1",
    "01",
    "-01",
    "00",
    "1.",
    ".1",
    "1.e1",
    "1e",
    "1e+",
    "1E+05",
    "1e-5",
    "0e0",
    "0x1",
    "1_000",
    "1a",
    "[1 2]",
    "[-]",
    "[0.0e-999999999999]",
    "[0e99999999999]",
    "[1e99999999999]",
    "[1e-99999999999]",
    "1e308",
    "1e309",
    "-1e309",
    "1.7976931348623157e308",
    "1.7976931348623158e308",
    "1.7976931348623159e308",
    "1.8e308",
    "17976931348623157e292",
    "179769313486231580793728971405301e276",
    "0.00000000000000000000000000000000000000000000000000000000000000000001e370",
    "18446744073709551615",
    "18446744073709551616",
    "18446744073709551616.5",
    "184467440737095516155.5e288",
    "-9223372036854775808",
    "-9223372036854775809",
];

/// Numbers that are the same in each run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    pub(super) fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    pub(super) fn value(&mut self, out: &mut String, depth: usize) {
        let kinds = if depth == 0 { 5 } else { 9 };
        match self.below(kinds) {
            0 => out.push_str(self.pick(&["true", "false", "null"])),
            1 | 2 => out.push_str(self.pick(&[
                "0",
                "-1",
                "12.5",
                "1e3",
                "0.0000001",
                "18446744073709551615",
                "1E-2",
            ])),
            3 | 4 => self.string(out),
            5 | 6 => self.list(out, ['[', ']'], |random, out| random.value(out, depth - 1)),
            _ => self.list(out, ['{', '}'], |random, out| {
                let name =
                    random.pick(&["a", "b", "0", "1", "\\u0061", "a/b", "", "é\\n", "c", "a long name"]);
                *out += &format!("\"{name}\"{}:{}", random.pick(&["", " "]), random.pick(&["", " ", "\n"]));
                random.value(out, depth - 1);
            }),
        }
    }

    fn string(&mut self, out: &mut String) {
        out.push('"');
        for _ in 0..self.below(6) {
            out.push_str(self.pick(&[
                "a",
                "some words of a text",
                "ü",
                "🦀",
                "\\n",
                "\\\"",
                "\\ud83e\\udd80",
                "\\ud83e",
                "\\uDd80",
                "語",
            ]));
        }
        out.push('"');
    }

    fn list(&mut self, out: &mut String, ends: [char; 2], mut item: impl FnMut(&mut Random, &mut String)) {
        out.push(ends[0]);
        for at in 0..self.below(4) {
            out.push_str(if at > 0 { "," } else { "" });
            out.push_str(self.pick(&["", "", " "]));
            item(self, out);
        }
        out.push(ends[1]);
    }
}
