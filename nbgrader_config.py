"""What makes plain `nbgrader ...` work at the root of the course; everything longer lives in autograder/."""

import os
import sys
import warnings

from autograder import nbgrader

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

# nbgrader looks for alembic on the PATH, also when it was itself started by its full path
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])

# nbgrader's own warning, about objects that it adds to its session later; no user can act on it
warnings.filterwarnings("ignore", message="Object of type <Submitted")

nbgrader.install()

c.CourseDirectory.course_id = "worldsize"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"
# what lies beside a solution and must reach neither students nor their submissions; a project's programs travel
# through the exchange all the same, by the classes named below
c.CourseDirectory.ignore = ["*.py", "*.pyc", "*.toml", "key.json", "__pycache__", ".*"]
c.CourseDirectory.ignore += ["wrong", "right", "*.diff", "feedback"]

c.ClearSolutions.code_stub = {
    "python": 'raise NotImplementedError("Replace this line with your own code, then run the cell again.")'
}
c.ClearSolutions.text_stub = "*Replace this line with your answer.*"

# the gradebook names no kernel: nbgrader could run a submission in it if the lines below were not read
c.GenerateAssignment.preprocessors = [
    "nbgrader.preprocessors.IncludeHeaderFooter",
    "nbgrader.preprocessors.InstantiateTests",
    "nbgrader.preprocessors.LockCells",
    "nbgrader.preprocessors.ClearSolutions",
    "nbgrader.preprocessors.ClearOutput",
    "nbgrader.preprocessors.CheckCellMetadata",
    "nbgrader.preprocessors.ComputeChecksums",
    "autograder.nbgrader.SaveCells",
    "autograder.nbgrader.ReleasePrograms",
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbgrader.preprocessors.ClearMarkScheme",
    "nbgrader.preprocessors.ComputeChecksums",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# grading: the judge decides, instead of a kernel that runs student code
c.Autograde.pre_convert_hook = "autograder.nbgrader.prepare"
c.Autograde.exporter_class = "autograder.nbgrader.SubmissionExporter"
c.Autograde.autograde_preprocessors = [
    "autograder.nbgrader.Grade",
    "autograder.nbgrader.SaveAutoGrades",
    "autograder.nbgrader.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.OverwriteCells.add_missing_cells = True

# the exchange: with a project's programs, and no student's file stops the others'
c.ExchangeFactory.release_assignment = "autograder.nbgrader.Release"
c.ExchangeFactory.fetch_assignment = "autograder.nbgrader.Fetch"
c.ExchangeFactory.submit = "autograder.nbgrader.Submit"
c.ExchangeFactory.release_feedback = "autograder.nbgrader.ReleaseFeedback"
c.ExchangeFactory.collect = "autograder.nbgrader.Collect"
c.ZipCollectApp.extractor_plugin = "autograder.nbgrader.Extractor"

# on a JupyterHub with ngshare the exchange is there: docs/hub.md
if ngshare := os.environ.get("NGSHARE_URL"):
    import ngshare_exchange

    ngshare_exchange.configureExchange(c, ngshare)
    c.ExchangeFactory.collect = "autograder.nbgrader.CollectFromNgshare"

# lateness: by the collectors' record and each student's own due date, and not by a timestamp.txt among their files
c.ZipCollectApp.collector_plugin = "autograder.nbgrader.FileNames"
# whose archives `nbgrader zip_collect` reads, by the roster: moodle, canvas or blackboard; the last one's clock, too
# c.FileNames.system, c.FileNames.time_zone = "blackboard", "Europe/Berlin"
c.FileNameCollectorPlugin.valid_ext = [".ipynb", ".py"]  # of programs only those that a project asks for
c.AssignLatePenalties.plugin_class = "autograder.nbgrader.Policy"
# for instance 30 minutes free, then 10% for every day begun, but never more than 50%; by default nothing
# c.Policy.grace_minutes, c.Policy.percent_per_day, c.Policy.cap_percent = 30, 10, 50

# `nbgrader export`: no number where there is no grade
c.ExportApp.plugin_class = "autograder.nbgrader.ExportGrades"

# a student's cells, in feedback and in the formgrader, with nothing in them that can run or take hours to render
c.HTMLExporter.filters = {
    "markdown2html": "autograder.nbgrader.markdown_to_html",
    "clean_html": "autograder.nbgrader.clean_html",
    "highlight_code": "autograder.nbgrader.highlight_code",
}

# feedback: a page of our own, which a student can read without a network
c.GenerateFeedback.force = True  # otherwise a page stays as it is when the points have changed
c.GenerateFeedback.exporter_class = "autograder.nbgrader.FeedbackExporter"
c.GenerateFeedback.preprocessors = ["autograder.nbgrader.FeedbackGrades", "autograder.nbgrader.FormulasToMathML"]
