use super::*;

const NOW: Duration = Duration::from_secs(1);

#[test]
fn stream_is_read_while_there_is_credit() {
    let mut duty = StepState::new(100);
    assert!(!duty.spend(Stream::Stdout, 99));
    assert!(duty.spend(Stream::Stdout, 31));
    assert!(!duty.spend(Stream::Stderr, 99));
    assert!(!duty.grant(Stream::Stdout, 30));
    assert!(duty.grant(Stream::Stdout, 1));
}

#[test]
fn deferrable_report_is_flushed_with_urgent_one_or_soon() {
    let mut duty = StepState::new(1);
    duty.note(true);
    assert!(!duty.must_flush(NOW));
    let by = duty.next_deadline().unwrap();
    assert!(duty.must_flush(by));
    duty.reports_flushed();
    assert_eq!(duty.next_deadline(), None);
    duty.note(true);
    duty.note(false);
    assert!(duty.must_flush(NOW));
}

#[test]
fn orphaned_step_kills_its_ranks_once_and_finishes_once() {
    let mut duty = StepState::new(1);
    assert_eq!(duty.orphan_action(true, NOW).count(), 0);
    assert!(duty.orphan(Duration::from_secs(60), NOW));
    assert!(!duty.orphan(Duration::ZERO, NOW));
    assert!(!duty.spend(Stream::Stdout, 1000), "nobody counts it");
    assert_eq!(duty.orphan_action(false, NOW).count(), 0);
    let at = duty.next_deadline().unwrap();
    assert_eq!(at, NOW + ORPHAN_GRACE);
    let last = |duty: &mut StepState, over| duty.orphan_action(over, at).collect::<Vec<_>>();
    assert_eq!(last(&mut duty, false), [OrphanAction::Kill]);
    assert_eq!(last(&mut duty, true), [OrphanAction::Finish]);
    assert_eq!(last(&mut duty, true), []);
    assert_eq!(duty.next_deadline(), None);
}

#[test]
fn ranks_are_started_or_skipped_once() {
    let mut duty = StepState::new(1);
    assert!(duty.begin());
    assert!(!duty.begin());
}
