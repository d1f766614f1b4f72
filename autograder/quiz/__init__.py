"""Quizzes and exams for a class: a form for each student, in the formats of learning platforms or on paper; marks."""
