//! Programs that must not compile.

#[test]
fn lifetimes_and_threads_are_checked_by_the_compiler() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
