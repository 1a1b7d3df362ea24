//! Each policy against a model that keeps the whole history and looks through it.

use super::segments::PROTECTED_PERCENT;
use super::*;
use proptest::prelude::*;

const KEYS: u32 = 9;

#[derive(Debug, Clone, Copy)]
enum Event {
    Touch(u32),
    Insert(u32),
    Remove(u32),
    Token,
    Capacity(usize),
    /// Asks for a victim among the keys whose bit is set.
    Victim(u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..KEYS).prop_map(Event::Touch),
        3 => (0..KEYS).prop_map(Event::Insert),
        2 => (0..KEYS).prop_map(Event::Remove),
        2 => Just(Event::Token),
        1 => (0..12usize).prop_map(Event::Capacity),
        6 => (0..1u32 << KEYS).prop_map(Event::Victim),
    ]
}

fn apply(ranking: &mut Ranking, event: Event) {
    match event {
        Event::Touch(key) => ranking.touch(key),
        Event::Insert(key) => ranking.insert(key),
        Event::Remove(key) => ranking.remove(key),
        Event::Token => ranking.token(),
        Event::Capacity(capacity) => ranking.set_capacity(capacity),
        Event::Victim(_) => (),
    }
}

/// The keys in the pool after the events.
fn pool(history: &[Event]) -> Vec<u32> {
    let mut pool = Vec::new();
    for event in history {
        match *event {
            Event::Insert(key) if !pool.contains(&key) => pool.push(key),
            Event::Remove(key) => pool.retain(|other| *other != key),
            _ => (),
        }
    }
    pool
}

/// When the key was last touched or came into the pool.
fn last_use(history: &[Event], key: u32) -> usize {
    let is_use = |at: usize| match history[at] {
        Event::Touch(other) => other == key,
        Event::Insert(other) => other == key && !pool(&history[..at]).contains(&key),
        _ => false,
    };
    (0..history.len()).rev().find(|at| is_use(*at)).unwrap_or(0)
}

/// The sum of `decay` to the power of each use's age in tokens.
fn score(history: &[Event], key: u32, decay: f64) -> f64 {
    let (mut age, mut score) = (0, 0.0);
    for event in history.iter().rev() {
        match *event {
            Event::Token => age += 1,
            Event::Touch(other) if other == key => score += decay.powi(age),
            _ => (),
        }
    }
    score
}

/// The two segments, oldest first, as the definition has it.
fn segments(history: &[Event], mut capacity: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut probation, mut protected) = (Vec::new(), Vec::new());
    for (at, event) in history.iter().enumerate() {
        match *event {
            Event::Touch(key) if probation.contains(&key) || protected.contains(&key) => {
                probation.retain(|other| *other != key);
                protected.retain(|other| *other != key);
                let since_removal = history[..at]
                    .iter()
                    .rev()
                    .take_while(|event| !matches!(event, Event::Remove(other) if *other == key));
                let used = { since_removal }
                    .any(|event| matches!(event, Event::Touch(other) if *other == key));
                if used { protected.push(key) } else { probation.push(key) }
            }
            Event::Insert(key) if !probation.contains(&key) && !protected.contains(&key) => {
                probation.push(key);
            }
            Event::Remove(key) => {
                probation.retain(|other| *other != key);
                protected.retain(|other| *other != key);
            }
            Event::Capacity(new) => capacity = new,
            _ => (),
        }
        while protected.len() > capacity * PROTECTED_PERCENT / 100 {
            probation.push(protected.remove(0));
        }
    }
    (probation, protected)
}

/// Runs the events through a ranking and compares each victim with that of a model, which gets
/// the history and the keys that may go.
fn compare(
    mut ranking: Ranking,
    events: &[Event],
    model: impl Fn(&[Event], &[u32]) -> Option<u32>,
) -> Result<(), TestCaseError> {
    for (at, event) in events.iter().enumerate() {
        apply(&mut ranking, *event);
        if let Event::Victim(mask) = event {
            let may_go = |key: u32| mask >> key & 1 == 1;
            let mut candidates = pool(&events[..at]);
            candidates.retain(|key| may_go(*key));
            prop_assert_eq!(ranking.victim(may_go), model(&events[..at], &candidates));
        }
    }
    Ok(())
}

fn frequency(decay: f64) -> Ranking {
    Ranking { order: Order::Frequency(Frequency::new(KEYS as usize, decay)) }
}

fn least_frequent(decay: f64) -> impl Fn(&[Event], &[u32]) -> Option<u32> {
    move |history, candidates| {
        let by_score = |a: &u32, b: &u32| {
            let of = |key: u32| score(history, key, decay);
            of(*a).total_cmp(&of(*b)).then(last_use(history, *a).cmp(&last_use(history, *b)))
        };
        candidates.iter().copied().min_by(by_score)
    }
}

proptest! {
    #[test]
    fn lru_is_the_longest_unused(events in prop::collection::vec(event(), 0..80)) {
        compare(Ranking::new(Policy::Lru, KEYS as usize, 4), &events, |history, candidates| {
            // Touches of keys outside the pool don't count for this one.
            let inside: Vec<Event> = (0..history.len())
                .filter(|at| match history[*at] {
                    Event::Touch(key) => pool(&history[..*at]).contains(&key),
                    _ => true,
                })
                .map(|at| history[at])
                .collect();
            candidates.iter().copied().min_by_key(|key| last_use(&inside, *key))
        })?;
    }

    #[test]
    fn lfu_counts_uses(events in prop::collection::vec(event(), 0..80)) {
        compare(Ranking::new(Policy::Lfu, KEYS as usize, 4), &events, least_frequent(1.0))?;
    }

    /// Sums of powers of a half are exact on both sides.
    #[test]
    fn decayed_uses_weigh_less(events in prop::collection::vec(event(), 0..100)) {
        compare(frequency(0.5), &events, least_frequent(0.5))?;
    }

    #[test]
    fn default_decay_halves_in_the_half_life(events in prop::collection::vec(event(), 0..100)) {
        let mut ranking = Ranking::new(Policy::Decayed, KEYS as usize, 4);
        for (at, event) in events.iter().enumerate() {
            apply(&mut ranking, *event);
            let of = |key| score(&events[..=at], key, 0.5_f64.powf(1.0 / HALF_LIFE));
            let least = pool(&events[..=at]).into_iter().map(of).fold(f64::INFINITY, f64::min);
            let victim = ranking.victim(|_| true);
            prop_assert!(victim.is_none_or(|key| of(key) <= least * (1.0 + 1e-12)));
        }
    }

    #[test]
    fn slru_spares_what_was_used_again(events in prop::collection::vec(event(), 0..100)) {
        let ranking = Ranking::new(Policy::Slru, KEYS as usize, 5);
        compare(ranking, &events, |history, candidates| {
            let (probation, protected) = segments(history, 5);
            probation.into_iter().chain(protected).find(|key| candidates.contains(key))
        })?;
    }
}

#[test]
fn scores_outlast_any_number_of_tokens() {
    let mut ranking = frequency(0.5);
    for token in 0..5000 {
        // The first of each pair is used twice.
        for key in [0, 1, 0].map(|key| token % 4 * 2 + key) {
            ranking.touch(key);
            ranking.insert(key);
        }
        ranking.token();
        if token > 4 {
            // All of four tokens ago, the less used one first.
            let oldest = (token + 1) % 4 * 2;
            assert_eq!(ranking.victim(|_| true), Some(oldest + 1), "token {token}");
            assert_eq!(ranking.victim(|key| key / 2 * 2 == oldest), Some(oldest + 1));
        }
    }
    let Order::Frequency(frequency) = ranking.order else { unreachable!() };
    assert!(frequency.least_first().count() == 8);
}

#[test]
fn an_empty_pool_has_no_victim() {
    for policy in Policy::ALL {
        let mut ranking = Ranking::new(policy, 4, 0);
        assert_eq!(ranking.victim(|_| true), None);
        ranking.touch(2);
        assert_eq!(ranking.victim(|_| true), None, "{policy}: a touch is no insertion");
        ranking.insert(2);
        ranking.insert(2);
        assert_eq!(ranking.victim(|_| true), Some(2));
        assert_eq!(ranking.victim(|_| false), None);
        ranking.remove(2);
        ranking.remove(2);
        assert_eq!(ranking.victim(|_| true), None);
    }
}

#[test]
fn names_are_read_as_they_are_shown() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
        assert_eq!(serde_json::to_string(&policy).unwrap(), format!("\"{policy}\""));
        let read: Policy = serde_json::from_str(&format!("\"{policy}\"")).unwrap();
        assert_eq!(read, policy);
    }
    let error = "mru".parse::<Policy>().unwrap_err().to_string();
    for policy in Policy::ALL {
        assert!(error.contains(policy.name()), "{error}");
    }
}

#[test]
fn keys_out_of_range_panic() {
    for policy in Policy::ALL {
        let result = std::panic::catch_unwind(|| Ranking::new(policy, 4, 4).insert(4));
        assert!(result.is_err(), "{policy}");
    }
}
