use super::*;

fn plot(speeds: bool) -> Plot {
    let line = |name: &str, offset: f64| Line {
        name: name.to_owned(),
        bound: name == "belady",
        points: (8..=64)
            .step_by(8)
            .map(|slots| Point {
                slots,
                miss_rate: offset / f64::from(slots),
                tokens_per_second: speeds.then(|| f64::from(slots) / offset),
            })
            .collect(),
    };
    let lines = vec![line("lru", 6.0), line("decayed", 5.0), line("belady", 3.0)];
    Plot { title: "a <model> & \"more\"".into(), experts: 96, lines }
}

/// Checks that tags match and quotes are closed, and returns each tag's name and text.
fn tags(svg: &str) -> Vec<(String, String)> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for piece in svg.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag ends");
        assert!(!text.contains('>') && tag.matches('"').count() % 2 == 0, "{piece}");
        let name = |tag: &str| tag.split([' ', '/']).next().unwrap().to_owned();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "{piece}");
            continue;
        }
        if !tag.ends_with('/') {
            open.push(name(tag));
        }
        all.push((name(tag), tag.to_owned()));
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

fn attribute(tag: &str, name: &str) -> f64 {
    let (_, value) = tag.split_once(&format!(" {name}=\"")).expect("it has the attribute");
    value.split('"').next().unwrap().parse().unwrap()
}

#[test]
fn a_line_a_policy_in_both_panels() {
    let svg = plot(true).svg();
    let tags = tags(&svg);
    let count = |name: &str| tags.iter().filter(|(tag, _)| tag == name).count();
    // The legend has one of each too.
    assert_eq!(count("polyline"), 3 * 3);
    assert_eq!(count("circle"), 3 * 8 * 2);
    assert!(svg.contains("a &lt;model&gt; &amp; &quot;more&quot;"));
    assert!(svg.contains("prefers-color-scheme:dark"));
    assert!(svg.contains("belady, 8: 37.5 % misses, 2.67 tokens/s"), "{svg}");
    assert_eq!(svg.matches("s2 bound").count(), 3);
    for (_, tag) in tags.iter().filter(|(name, _)| name == "circle") {
        let (x, y) = (attribute(tag, "cx"), attribute(tag, "cy"));
        let panels = [HEAD, HEAD + PANEL + GAP].map(|top| top..=top + PANEL);
        assert!(
            (LEFT..=RIGHT).contains(&x) && panels.iter().any(|y_of| y_of.contains(&y)),
            "{tag}"
        );
    }
    // The points of the first line go down from left to right.
    let heights: Vec<_> = { tags.iter() }
        .filter(|(name, _)| name == "circle")
        .take(8)
        .map(|(_, tag)| attribute(tag, "cy"))
        .collect();
    assert!(heights.is_sorted(), "{heights:?}");
}

#[test]
fn without_speeds_there_is_one_panel() {
    let svg = plot(false).svg();
    tags(&svg);
    assert!(!svg.contains("tokens/s"));
    assert!(plot(true).svg().contains(">tokens/s<"));
}

#[test]
fn any_numbers_make_a_plot() {
    let point = |slots, miss_rate, speed| Point { slots, miss_rate, tokens_per_second: speed };
    let cases = [
        vec![],
        vec![point(8, 0.0, Some(0.0))],
        vec![point(8, 1.0, Some(f64::INFINITY)), point(9, 0.0, None)],
        vec![point(1, 1e-9, Some(1e9)), point(u32::MAX, 1e-12, Some(1e-9))],
    ];
    for points in cases {
        let line = Line { name: "l\u{1b}ru".into(), points, bound: false };
        let svg = Plot { title: String::new(), experts: 8, lines: vec![line] }.svg();
        tags(&svg);
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains('\u{1b}'), "{svg}");
    }
    tags(&Plot { title: String::new(), experts: 8, lines: vec![] }.svg());
}

#[test]
fn axes_have_round_labels() {
    let labels = |axis: Axis| axis.ticks().map(|tick| axis.label(tick)).collect::<Vec<_>>();
    assert_eq!(labels(Axis::to(37.5)), ["0", "5", "10", "15", "20", "25", "30", "35", "40"]);
    assert_eq!(
        labels(Axis::to(1.9)),
        ["0.00", "0.25", "0.50", "0.75", "1.00", "1.25", "1.50", "1.75", "2.00"]
    );
    assert_eq!(labels(Axis::to(0.0)).len(), 6);
    assert_eq!(labels(Axis::to(7_000_000.0)).last().unwrap(), "7000000");
}

#[test]
fn sizes_have_labels_where_there_is_room() {
    let labels = |sizes: &[u32]| {
        let point = |slots: &u32| Point { slots: *slots, miss_rate: 0.5, tokens_per_second: None };
        let points = sizes.iter().map(point).collect();
        let line = Line { name: "lru".into(), points, bound: false };
        let svg = Plot { title: String::new(), experts: 8, lines: vec![line] }.svg();
        sizes.iter().filter(|size| svg.contains(&format!(">{size}</text>"))).count()
    };
    assert_eq!(labels(&[8, 16, 24, 32, 40, 48, 56, 64]), 8);
    assert_eq!(labels(&[77]), 1);
    assert_eq!(labels(&[800, 801, 802, 999]), 2);
}
