//! Checks GBNF before llama.cpp sees it: its own parser reports to standard error only, and some faults abort it.
//!
//! The rules are expanded the way llama.cpp expands them, so that both agree on what is left-recursive or too large.

use std::collections::HashMap;

use crate::error::{Error, ErrorKind, Result};

/// llama.cpp's limits (`llama-grammar.cpp`, v0.8.0).
const MAX_REPETITIONS: u64 = 2000;
const MAX_DEPTH: usize = 256;

/// Checks a grammar and returns the tokens that it names, such as `<think>`: whether a vocabulary has them is seen when
/// a model is there.
pub(super) fn check(text: &str) -> Result<Vec<String>> {
    let mut parser = Parser::new(text);
    parser.grammar()?;
    parser.check_references()?;
    parser.check_left_recursion()?;
    parser.check_growth()?;
    Ok(parser.tokens)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Symbol {
    /// A character class or a token: never empty.
    Terminal,
    Rule(usize),
}

type Alternatives = Vec<Vec<Symbol>>;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    ids: HashMap<String, usize>,
    names: Vec<String>,
    // Where a rule is first named, for the message about undefined ones.
    first_use: Vec<usize>,
    // None: referenced, not defined yet.
    rules: Vec<Option<Alternatives>>,
    tokens: Vec<String>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            ids: HashMap::new(),
            names: Vec::new(),
            first_use: Vec::new(),
            rules: Vec::new(),
            tokens: Vec::new(),
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, expected: char) -> bool {
        let hit = self.peek() == Some(expected);
        if hit {
            self.at += expected.len_utf8();
        }
        hit
    }

    fn fail<T>(&self, what: impl std::fmt::Display) -> Result<T> {
        self.fail_at(self.at, what)
    }

    fn fail_at<T>(&self, at: usize, what: impl std::fmt::Display) -> Result<T> {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |tail| tail.chars().count()) + 1;
        Err(invalid(format!("line {line}, column {column}: {what}")))
    }

    fn expected<T>(&self, what: &str) -> Result<T> {
        match self.peek() {
            Some(c) => self.fail(format!("expected {what}, found {c:?}")),
            None => self.fail(format!("expected {what}, found the end")),
        }
    }

    fn space(&mut self, newlines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if newlines => self.at += 1,
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n' && c != '\r') {
                        self.next();
                    }
                }
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Result<&'a str> {
        let rest = &self.text[self.at..];
        let len = rest.find(|c: char| !is_name_char(c)).unwrap_or(rest.len());
        if len == 0 {
            return self.expected("a rule name");
        }
        self.at += len;
        Ok(&rest[..len])
    }

    fn rule_id(&mut self, name: &str, at: usize) -> usize {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let id = self.new_rule(name.to_owned(), at);
        self.ids.insert(name.to_owned(), id);
        id
    }

    fn new_rule(&mut self, name: String, at: usize) -> usize {
        self.names.push(name);
        self.first_use.push(at);
        self.rules.push(None);
        self.rules.len() - 1
    }

    fn grammar(&mut self) -> Result<()> {
        if let Some(at) = self.text.find('\0') {
            return self.fail_at(at, "a zero byte");
        }
        self.space(true);
        if self.peek().is_none() {
            return Err(invalid("it is empty; a rule named 'root' is required"));
        }
        while self.peek().is_some() {
            self.rule()?;
        }
        Ok(())
    }

    fn rule(&mut self) -> Result<()> {
        let at = self.at;
        let name = self.name()?;
        self.space(false);
        if !self.text[self.at..].starts_with("::=") {
            return self.expected(&format!("'::=' after the rule name '{name}'"));
        }
        self.at += 3;
        self.space(true);
        let id = self.rule_id(name, at);
        let alternatives = self.alternatives(name, false, 0)?;
        self.rules[id] = Some(alternatives);
        match self.peek() {
            None | Some('\n' | '\r') => self.space(true),
            Some(_) => return self.expected("a new line or the end of the rule"),
        }
        Ok(())
    }

    fn alternatives(&mut self, name: &str, nested: bool, depth: usize) -> Result<Alternatives> {
        let mut all = vec![self.sequence(name, nested, depth)?];
        while self.eat('|') {
            self.space(true);
            all.push(self.sequence(name, nested, depth)?);
        }
        Ok(all)
    }

    fn sequence(&mut self, name: &str, nested: bool, depth: usize) -> Result<Vec<Symbol>> {
        let mut symbols = Vec::new();
        // Where the item that a repetition applies to starts, and how many rules it stands for.
        let mut item = 0;
        let mut item_rules = 1;
        while let Some(c) = self.peek() {
            let at = self.at;
            match c {
                '"' => {
                    item = symbols.len();
                    item_rules = 1;
                    self.literal(&mut symbols)?;
                }
                '[' => {
                    item = symbols.len();
                    item_rules = 1;
                    self.class(&mut symbols)?;
                }
                '<' | '!' => {
                    item = symbols.len();
                    item_rules = 1;
                    self.eat('!');
                    self.token()?;
                    symbols.push(Symbol::Terminal);
                }
                '.' => {
                    self.at += 1;
                    item = symbols.len();
                    item_rules = 1;
                    symbols.push(Symbol::Terminal);
                }
                '(' => {
                    if depth >= MAX_DEPTH {
                        return self.fail(format!("groups are nested more than {MAX_DEPTH} deep"));
                    }
                    self.at += 1;
                    self.space(true);
                    let before = self.rules.len();
                    let id = self.new_rule(format!("{name} (group)"), at);
                    let inner = self.alternatives(name, true, depth + 1)?;
                    self.rules[id] = Some(inner);
                    if !self.eat(')') {
                        return self.expected("')' or another item of the group");
                    }
                    item = symbols.len();
                    item_rules = (self.rules.len() - before).max(1) as u64;
                    symbols.push(Symbol::Rule(id));
                }
                '*' | '+' | '?' | '{' => {
                    if item == symbols.len() {
                        return self.fail(format!("'{c}' has nothing before it to repeat"));
                    }
                    let (min, max) = self.repetition(nested)?;
                    self.repeat(name, &mut symbols, item, &mut item_rules, min, max, at)?;
                }
                c if is_name_char(c) => {
                    let reference = self.name()?;
                    item = symbols.len();
                    item_rules = 1;
                    let id = self.rule_id(reference, at);
                    symbols.push(Symbol::Rule(id));
                }
                _ => break,
            }
            self.space(nested);
        }
        Ok(symbols)
    }

    fn literal(&mut self, symbols: &mut Vec<Symbol>) -> Result<()> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                None => return self.fail_at(start, "this string has no closing '\"'"),
                Some('"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) => {
                    self.character()?;
                    symbols.push(Symbol::Terminal);
                }
            }
        }
    }

    fn class(&mut self, symbols: &mut Vec<Symbol>) -> Result<()> {
        let start = self.at;
        self.at += 1;
        self.eat('^');
        let mut empty = true;
        loop {
            match self.peek() {
                None => return self.fail_at(start, "this character class has no closing ']'"),
                Some(']') => {
                    self.at += 1;
                    break;
                }
                Some(_) => {
                    let low_at = self.at;
                    let low = self.character()?;
                    empty = false;
                    if self.peek() == Some('-') && !self.text[self.at + 1..].starts_with(']') {
                        self.at += 1;
                        if self.peek().is_none() {
                            return self.fail_at(start, "this character class has no closing ']'");
                        }
                        let high = self.character()?;
                        if high < low {
                            return self.fail_at(low_at, "this range ends before it starts");
                        }
                    }
                }
            }
        }
        if empty {
            return self.fail_at(start, "this character class is empty and matches nothing");
        }
        symbols.push(Symbol::Terminal);
        Ok(())
    }

    fn character(&mut self) -> Result<u32> {
        let at = self.at;
        let Some(c) = self.next() else { return self.expected("a character") };
        if c != '\\' {
            return Ok(u32::from(c));
        }
        let digits = match self.next() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('t') => return Ok(0x09),
            Some('r') => return Ok(0x0D),
            Some('n') => return Ok(0x0A),
            Some(c @ ('\\' | '"' | '[' | ']' | '-')) => return Ok(u32::from(c)),
            Some(c) => {
                return self.fail_at(
                    at,
                    format!("unknown escape '\\{c}'; there are \\t \\r \\n \\\\ \\\" \\[ \\] \\- \\xHH \\uHHHH \\UHHHHHHHH"),
                );
            }
            None => return self.fail_at(at, "a lone '\\' at the end"),
        };
        let hex = self.text.get(self.at..self.at + digits);
        match hex.filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit())) {
            Some(hex) => {
                self.at += digits;
                // digits only, and at most eight: cannot fail
                Ok(u32::from_str_radix(hex, 16).unwrap_or(0))
            }
            None => self.fail_at(at, format!("this escape needs {digits} hexadecimal digits")),
        }
    }

    /// `<[1234]>` or `<name>`.
    fn token(&mut self) -> Result<()> {
        let start = self.at;
        if !self.eat('<') {
            return self.expected("'<' of a token");
        }
        if self.eat('[') {
            let digits_at = self.at;
            let digits = self.digits();
            if digits.is_empty() {
                return self.expected("a token number");
            }
            if digits.parse::<u32>().is_err() {
                return self.fail_at(digits_at, "this token number is too large");
            }
            if !self.eat(']') {
                return self.expected("']' after the token number");
            }
            if !self.eat('>') {
                return self.expected("'>' after the token number");
            }
            return Ok(());
        }
        while let Some(c) = self.next() {
            if c == '>' {
                self.tokens.push(self.text[start..self.at].to_owned());
                return Ok(());
            }
        }
        self.fail_at(start, "this token has no closing '>'")
    }

    fn digits(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    /// Reads a repetition; `None` for no upper limit.
    fn repetition(&mut self, nested: bool) -> Result<(u64, Option<u64>)> {
        match self.next() {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            _ => {}
        }
        self.space(nested);
        let min = self.count()?;
        self.space(nested);
        if self.eat('}') {
            return Ok((min, Some(min)));
        }
        if !self.eat(',') {
            return self.expected("',' or '}' in the repetition");
        }
        self.space(nested);
        let mut max = None;
        if self.peek().is_some_and(|c| c.is_ascii_digit()) {
            let at = self.at;
            let value = self.count()?;
            if value < min {
                return self.fail_at(at, format!("at most {value} is below at least {min}"));
            }
            // llama.cpp takes a larger limit for none
            max = Some(value).filter(|&value| value <= MAX_REPETITIONS);
            self.space(nested);
        }
        if !self.eat('}') {
            return self.expected("'}' of the repetition");
        }
        Ok((min, max))
    }

    fn count(&mut self) -> Result<u64> {
        let at = self.at;
        let digits = self.digits();
        if digits.is_empty() {
            return self.expected("a number of repetitions");
        }
        Ok(digits.parse().unwrap_or(u64::MAX)).and_then(|n| {
            // the upper limit is checked by the caller
            if n == u64::MAX { self.fail_at(at, "this number is too large") } else { Ok(n) }
        })
    }

    #[allow(clippy::too_many_arguments)]
    fn repeat(
        &mut self,
        name: &str,
        symbols: &mut Vec<Symbol>,
        item: usize,
        item_rules: &mut u64,
        min: u64,
        max: Option<u64>,
        at: usize,
    ) -> Result<()> {
        let total = max.filter(|&max| max > 0).unwrap_or(min).max(1);
        if min > MAX_REPETITIONS || item_rules.saturating_mul(total) > MAX_REPETITIONS {
            return self.fail_at(
                at,
                format!("this repetition expands to more than {MAX_REPETITIONS} rules"),
            );
        }
        let repeated = symbols[item..].to_vec();
        if min == 0 {
            symbols.truncate(item);
        }
        for _ in 1..min {
            symbols.extend_from_slice(&repeated);
        }
        let optional = max.map_or(1, |max| max - min);
        let mut last = None;
        for _ in 0..optional {
            let id = self.new_rule(format!("{name} (repetition)"), at);
            let mut body = repeated.clone();
            body.extend(if max.is_none() { Some(id) } else { last }.map(Symbol::Rule));
            self.rules[id] = Some(vec![body, Vec::new()]);
            last = Some(id);
        }
        symbols.extend(last.map(Symbol::Rule));
        *item_rules *= total;
        Ok(())
    }

    fn check_references(&self) -> Result<()> {
        for (id, rule) in self.rules.iter().enumerate() {
            if rule.is_none() {
                let name = &self.names[id];
                return self.fail_at(self.first_use[id], format!("rule '{name}' is not defined"));
            }
        }
        if !self.ids.contains_key("root") {
            return Err(invalid("it has no rule named 'root', where texts start"));
        }
        Ok(())
    }

    /// Walks the rules that can come first. The walk keeps its own stack: grammars come from outside.
    fn check_left_recursion(&self) -> Result<()> {
        let nullable = self.nullable();
        let mut done = vec![false; self.rules.len()];
        let mut active = vec![false; self.rules.len()];
        for start in 0..self.rules.len() {
            if done[start] {
                continue;
            }
            active[start] = true;
            let mut path = vec![(start, self.leftmost(start, &nullable), 0)];
            while let Some((rule, next, index)) = path.last_mut() {
                let Some(&child) = next.get(*index) else {
                    active[*rule] = false;
                    done[*rule] = true;
                    path.pop();
                    continue;
                };
                *index += 1;
                if active[child] {
                    return self.left_recursive(child);
                }
                if !done[child] {
                    if path.len() > MAX_DEPTH {
                        return Err(invalid(format!(
                            "its rules are chained more than {MAX_DEPTH} levels deep"
                        )));
                    }
                    active[child] = true;
                    path.push((child, self.leftmost(child, &nullable), 0));
                }
            }
        }
        Ok(())
    }

    /// Finds left recursion behind parts that are empty only in a roundabout way, which llama.cpp does not look for: it
    /// then stacks rules until memory runs out. A rule that comes back to itself as the last part of its alternatives,
    /// such as a repetition of something that may be empty, stacks nothing and is fine.
    fn check_growth(&self) -> Result<()> {
        let nullable = self.nullable_at_all();
        let mut edges = vec![Vec::new(); self.rules.len()];
        let mut growing = Vec::new();
        for (id, edges) in edges.iter_mut().enumerate() {
            for alternative in self.rule_at(id) {
                for (at, symbol) in alternative.iter().enumerate() {
                    let Symbol::Rule(child) = *symbol else { break };
                    edges.push(child);
                    if at + 1 < alternative.len() {
                        growing.push((id, child));
                    }
                    if !nullable[child] {
                        break;
                    }
                }
            }
        }
        let cycle = cycles(&edges);
        match growing.into_iter().find(|&(from, to)| cycle[from] == cycle[to]) {
            Some((id, _)) => self.left_recursive(id),
            None => Ok(()),
        }
    }

    fn left_recursive<T>(&self, id: usize) -> Result<T> {
        let name = &self.names[id];
        self.fail_at(
            self.first_use[id],
            format!(
                "rule '{name}' is left-recursive: it can start with itself, and would never end"
            ),
        )
    }

    /// Rules that can match nothing, directly or through others.
    fn nullable_at_all(&self) -> Vec<bool> {
        let mut nullable = vec![false; self.rules.len()];
        // For each rule, the alternatives of other rules that wait for it to turn out empty.
        let mut waiting: Vec<Vec<(usize, &[Symbol])>> = vec![Vec::new(); self.rules.len()];
        let mut todo: Vec<(usize, &[Symbol])> = (0..self.rules.len())
            .flat_map(|id| self.rule_at(id).iter().map(move |symbols| (id, symbols.as_slice())))
            .collect();
        while let Some((id, symbols)) = todo.pop() {
            if nullable[id] {
                continue;
            }
            match symbols.split_first() {
                None => {
                    nullable[id] = true;
                    todo.append(&mut waiting[id]);
                }
                Some((Symbol::Terminal, _)) => {}
                Some((Symbol::Rule(child), rest)) if nullable[*child] => todo.push((id, rest)),
                Some((Symbol::Rule(child), rest)) => waiting[*child].push((id, rest)),
            }
        }
        nullable
    }

    fn rule_at(&self, id: usize) -> &[Vec<Symbol>] {
        self.rules[id].as_deref().unwrap_or(&[])
    }

    /// Rules with an alternative that is empty as written; llama.cpp looks no further.
    fn nullable(&self) -> Vec<bool> {
        (0..self.rules.len()).map(|id| self.rule_at(id).iter().any(Vec::is_empty)).collect()
    }

    /// The rules that `id` can start with.
    fn leftmost(&self, id: usize, nullable: &[bool]) -> Vec<usize> {
        let mut first = Vec::new();
        for alternative in self.rule_at(id) {
            for symbol in alternative {
                let Symbol::Rule(child) = *symbol else { break };
                first.push(child);
                if !nullable[child] {
                    break;
                }
            }
        }
        first
    }
}

/// Numbers the strongly connected parts of a graph: two nodes have one number if each can be reached from the other
/// (Kosaraju's algorithm, without recursion).
fn cycles(edges: &[Vec<usize>]) -> Vec<usize> {
    let mut reversed = vec![Vec::new(); edges.len()];
    for (from, targets) in edges.iter().enumerate() {
        targets.iter().for_each(|&to| reversed[to].push(from));
    }
    let mut order = Vec::with_capacity(edges.len());
    let mut seen = vec![false; edges.len()];
    for start in 0..edges.len() {
        if std::mem::replace(&mut seen[start], true) {
            continue;
        }
        let mut path = vec![(start, 0)];
        while let Some((node, next)) = path.last_mut() {
            match edges[*node].get(*next) {
                Some(&child) => {
                    *next += 1;
                    if !std::mem::replace(&mut seen[child], true) {
                        path.push((child, 0));
                    }
                }
                None => {
                    order.push(*node);
                    path.pop();
                }
            }
        }
    }
    let mut part = vec![usize::MAX; edges.len()];
    for &start in order.iter().rev() {
        let mut todo = vec![start];
        while let Some(node) = todo.pop() {
            if part[node] == usize::MAX {
                part[node] = start;
                todo.extend(reversed[node].iter().filter(|&&n| part[n] == usize::MAX));
            }
        }
    }
    part
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}

fn invalid(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Grammar, format!("the grammar is invalid: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        let error = check(text).expect_err(text);
        assert_eq!(error.kind(), &ErrorKind::Grammar);
        error.message().to_owned()
    }

    #[test]
    fn ordinary_grammars_pass() {
        for text in [
            "root ::= \"a\"",
            "# comment\n\nroot ::= item+ # trailing\nitem ::= \"- \" [^\\n]+ \"\\n\"\n",
            "root ::= (\"a\" | \"b\")? [a-zA-Z_-] [\\x41-\\x5A] [\\u00e9] \"\\U0001F600\" .",
            "root ::= [0-9]{3} [0-9]{2,} [0-9]{0,5} [0-9]{,}".replace("{,}", "*").as_str(),
            "root ::= \"\"",
            "root ::=\n  \"a\" |\n  \"b\"\n",
            "root ::= (\n \"a\"\n \"b\"\n)\r\nother ::= root",
            "root ::= <[12]> !<[3]> <think>",
            "root ::= ( ws | item )*\nws ::= [ ]*\nitem ::= \"x\"",
            "root ::= ((\"a\"?)*)* \"b\"",
            "root ::= \"日本\" [あ-ん]",
            "expr ::= term (\"+\" term)*\nterm ::= \"(\" expr \")\" | [0-9]+\nroot ::= expr",
        ] {
            check(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        }
    }

    #[test]
    fn faults_are_located() {
        for (text, expected) in [
            ("", "it is empty"),
            (" # only a comment\n", "it is empty"),
            ("other ::= \"a\"", "no rule named 'root'"),
            ("root ::= answer", "line 1, column 10: rule 'answer' is not defined"),
            ("root = \"a\"", "line 1, column 6: expected '::='"),
            ("root ::= \"a\n", "no closing '\"'"),
            ("root ::= \"a\"\nx ::= [a-", "line 2, column 7: this character class has no closing"),
            ("root ::= [z-a]", "ends before it starts"),
            ("root ::= []", "empty"),
            ("root ::= \"\\q\"", "unknown escape '\\q'"),
            ("root ::= \"\\x4\"", "needs 2 hexadecimal digits"),
            ("root ::= \"\\u12é\"", "needs 4 hexadecimal digits"),
            ("root ::= (\"a\"", "expected ')'"),
            ("root ::= \"a\")", "expected a new line or the end of the rule"),
            ("root ::= * \"a\"", "nothing before it"),
            ("root ::= \"a\"{2,1}", "at most 1 is below at least 2"),
            ("root ::= \"a\"{x}", "expected a number of repetitions, found 'x'"),
            ("root ::= \"a\"{1;2}", "expected ',' or '}'"),
            ("root ::= \"a\"{3000}", "more than 2000 rules"),
            ("root ::= (\"a\" \"b\"{0,40}){100}", "more than 2000 rules"),
            ("root ::= \"a\"{99999999999999999999}", "too large"),
            ("root ::= <[99999999999]>", "token number is too large"),
            ("root ::= <think", "no closing '>'"),
            ("root ::= \"a\0b\"", "a zero byte"),
        ] {
            let message = message(text);
            assert!(message.contains(expected), "{text:?}: {message}");
        }
    }

    #[test]
    fn left_recursion_is_found_through_optional_parts() {
        for text in [
            "root ::= root \"a\"",
            "root ::= x\nx ::= y \"1\"\ny ::= x | \"2\"",
            "root ::= \"a\"? root",
            "root ::= (root)",
            // empty in a roundabout way: llama.cpp would fill the memory
            "root ::= (\"c\"?) root *",
            "root ::= x root \"a\" | \"b\"\nx ::= y y\ny ::= \"c\"*",
        ] {
            assert!(message(text).contains("left-recursive"), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = format!("root ::= {}\"a\"{}", "(".repeat(300), ")".repeat(300));
        assert!(message(&nested).contains("256 deep"));
        let chain: String = (0..600).map(|i| format!("r{i} ::= r{} \"a\"\n", i + 1)).collect();
        assert!(message(&format!("root ::= r0\n{chain}r600 ::= \"b\"\n")).contains("256 levels"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_answered(text in "[a-c:=|()\\[\\]{}*+?\"\\\\<>!.^, \n#0-9é-]{0,60}") {
            let _ = check(&text);
            let _ = check(&format!("root ::= {text}"));
        }
    }
}
