// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Window is the time in which plans are applied. The zero value is never open.
type Window struct {
	spans []span
}

// span is one part of a Window: hours that begin on some days of the week.
type span struct {
	days       [7]bool // by time.Weekday
	start, end int     // minutes since midnight; end is after start, and past 24 hours on the next day
	zone       *time.Location
}

const (
	// maxSpans bounds the parts of a window.
	maxSpans = 32
	day      = 24 * 60 // minutes
	// horizon is how many days ahead an opening is looked for. A change of the clock can
	// leave a window out that opens once a week, so one week is not enough.
	horizon = 16
	// longest is how far ahead it is looked for the end of windows that touch each other.
	longest = 14 * 24 * time.Hour
)

var weekdays = [7]string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}

var (
	hours = regexp.MustCompile(`^([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})$`)
	zones = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)
)

// ParseWindow reads windows that are separated by semicolons. Each is days of the week,
// hours and a time zone, with a space between them:
//
//	Mon-Fri 09:00-17:00 Europe/Berlin; Sat,Sun 22:00-04:00 UTC
//
// Days are three letters with a capital, in ranges and lists. Hours that end before they
// begin go on into the next day; 24:00 is midnight at the end of a day. The zone is a name
// of the IANA database. Nothing is guessed: what is written in another way is an error.
func ParseWindow(text string) (Window, error) {
	parts := strings.Split(text, ";")
	if len(parts) > maxSpans {
		return Window{}, fmt.Errorf("there are %d windows, at most %d are taken", len(parts), maxSpans)
	}
	var w Window
	for _, part := range parts {
		s, err := parseSpan(strings.TrimSpace(part))
		if err != nil {
			return Window{}, err
		}
		w.spans = append(w.spans, s)
	}
	return w, nil
}

func parseSpan(text string) (span, error) {
	words := strings.Fields(text)
	if len(words) != 3 {
		return span{}, fmt.Errorf(`%q is not days, hours and zone, as "Mon-Fri 09:00-17:00 Europe/Berlin"`, text)
	}
	var s span
	var err error
	if s.days, err = parseDays(words[0]); err != nil {
		return span{}, err
	}
	if s.start, s.end, err = parseHours(words[1]); err != nil {
		return span{}, err
	}
	// "Local" is whatever the machine is set to, which the author does not know.
	if name := words[2]; !zones.MatchString(name) || name == "Local" {
		err = errors.New("no such zone")
	} else {
		s.zone, err = time.LoadLocation(name)
	}
	if err != nil {
		return span{}, fmt.Errorf("%q is not a time zone such as Europe/Berlin or UTC", words[2])
	}
	return s, nil
}

func parseDays(text string) (days [7]bool, err error) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		first, last := weekday(from), weekday(to)
		if first < 0 || last < 0 {
			return days, fmt.Errorf("%q is not a day or a range of days of %s", part, strings.Join(weekdays[:], ", "))
		}
		for d := first; ; d = (d + 1) % 7 {
			days[d] = true
			if d == last {
				break
			}
		}
	}
	return days, nil
}

func weekday(name string) int {
	for i, d := range weekdays {
		if d == name {
			return i
		}
	}
	return -1
}

func parseHours(text string) (start, end int, err error) {
	m := hours.FindStringSubmatch(text)
	if m == nil {
		return 0, 0, fmt.Errorf("%q is not hours such as 09:00-17:00", text)
	}
	number := func(s string) int { return int(s[0]-'0')*10 + int(s[1]-'0') }
	start, end = number(m[1])*60+number(m[2]), number(m[3])*60+number(m[4])
	switch {
	case number(m[2]) > 59 || number(m[4]) > 59 || start >= day || end > day:
		return 0, 0, fmt.Errorf("%q has a time that there is not", text)
	case start == end:
		return 0, 0, fmt.Errorf("%q has no length; a whole day is 00:00-24:00", text)
	case end < start:
		end += day
	}
	return start, end, nil
}

// At tells whether the window is open, and when that changes next: the time at which it
// shuts, or opens. Where clocks are put forward, a time that is left out is the moment of
// the change; where they are put back, a time that comes twice is the first of the two.
// The change is in the zone of the part that it belongs to; it is zero if there is none
// within two weeks.
func (w Window) At(now time.Time) (open bool, change time.Time) {
	end := now
	for {
		next := end
		for _, s := range w.spans {
			from, to := s.around(end)
			switch {
			case from.IsZero():
			case !from.After(end):
				// Parts that overlap or touch are open together: go on from the end of this one.
				if to.After(next) {
					next = to
				}
			case change.IsZero() || from.Before(change):
				change = from
			}
		}
		switch {
		case next.Equal(end) && open:
			return true, end
		case next.Equal(end):
			return false, change
		case next.Sub(now) > longest:
			return true, time.Time{}
		}
		open, end = true, next
	}
}

// around returns the span that t is in, or the next one; zero times if there is none
// within the horizon.
func (s span) around(t time.Time) (from, to time.Time) {
	year, month, date := t.In(s.zone).Date()
	for d := -2; d < horizon; d++ {
		if !s.days[time.Date(year, month, date+d, 12, 0, 0, 0, time.UTC).Weekday()] {
			continue
		}
		from, to = s.moment(year, month, date+d, s.start), s.moment(year, month, date+d, s.end)
		if from.Before(to) && to.After(t) {
			return from, to
		}
	}
	return time.Time{}, time.Time{}
}

// moment is the time at which clocks of the zone show so many minutes of a date.
func (s span) moment(year int, month time.Month, date, minutes int) time.Time {
	wall := time.Date(year, month, date, 0, minutes, 0, 0, time.UTC)
	offset := func(near time.Time) time.Duration {
		_, seconds := near.In(s.zone).Zone()
		return time.Duration(seconds) * time.Second
	}
	// The offsets of the day before and after are those before and after a change.
	before, after := wall.Add(-offset(wall.Add(-day*time.Minute))), wall.Add(-offset(wall.Add(day*time.Minute)))
	if after.Before(before) {
		before, after = after, before
	}
	for _, t := range []time.Time{before, after} {
		if shown := t.In(s.zone); shown.Hour()*60+shown.Minute() == wall.Hour()*60+wall.Minute() && shown.Day() == wall.Day() {
			return shown
		}
	}
	// No clock shows it. The later reading is that of the offset before the change, so it
	// lies behind the change.
	start, _ := after.In(s.zone).ZoneBounds()
	return start
}
