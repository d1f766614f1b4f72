"""Quizzes and exams for a class: a form for each student, in the format that their system takes, and their marks."""
