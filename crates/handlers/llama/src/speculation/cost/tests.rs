//! Tests of learned costs.

use super::Costs;

fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 0.05
}

#[test]
fn costs_between_measured_ones_are_between() {
    let costs = Costs::by(|rows| 2.0 + rows as f64);
    for rows in [1, 2, 9, 10, 11, 17, 50, 100, 255, 300, 512, 1000] {
        assert!(near(costs.of(rows), 2.0 + rows as f64), "{rows}: {}", costs.of(rows));
    }
    assert_eq!(costs.of(0), 0.0);
}

#[test]
fn the_first_step_tells_the_unit_and_later_ones_the_rest() {
    let mut costs = Costs::default();
    assert!(!costs.are_measured());
    costs.learn(1, 0.004);
    assert!(costs.are_measured() && near(costs.of(1), 0.004));
    assert!(near(costs.of(11), 0.008));
    // Eight rows turn out to cost no more than one.
    for _ in 0..600 {
        costs.learn(8, 0.004);
        costs.learn(1, 0.004);
    }
    assert!(near(costs.of(1), 0.004) && near(costs.of(8), 0.004), "{}", costs.of(8));
    // A slower machine scales all costs.
    for _ in 0..100 {
        costs.learn(1, 0.006);
    }
    assert!(near(costs.of(1), 0.006) && costs.of(8) > 0.0055, "{}", costs.of(8));
}

#[test]
fn one_late_step_says_little() {
    let mut costs = Costs::default();
    costs.learn(1, 0.004);
    costs.learn(1, 4.0);
    assert!(costs.of(1) < 0.005);
    costs.learn(1, 0.0);
    costs.learn(1, f64::NAN);
    costs.learn(0, 1.0);
    assert!(costs.of(1) < 0.005);
}
